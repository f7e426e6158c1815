"""`adapters.ToAxes`: one order of axes for all chains of a loader."""

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.testing import AdapterContract

STACK = np.random.default_rng(0).integers(0, 4000, (6, 20, 24), np.uint16)


def opened(**options):
    image = vp.Volume(STACK, axes="zyx", affine=np.diag([0.25, 0.5, 2, 1]))
    return vp.from_cases([{"image": image, **options}] * 2).open_volume()


class TestToAxes(AdapterContract):
    same_batches = False

    def make(self):
        return vp.adapters.ToAxes("zyx")

    def chain(self):
        return opened().lazy_patch((4, 8, 6)).batch_patches(2)


def test_a_loader_has_one_order():
    """The same batches as with the pipe, and the user's graph stays as it was."""
    pipe = opened().lazy_patch((4, 8, 16)).zoom((1, 1.2, 1.2)).batch_patches(2)
    stated = opened().to_axes("zyx").lazy_patch((4, 8, 16)).zoom((1, 1.2, 1.2)).batch_patches(2)
    with vp.DataLoader2(pipe, [vp.adapters.ToAxes("zyx")], seed=1) as loader:
        one = next(iter(loader))["image"].clone()
    with vp.DataLoader2(stated, seed=1) as loader:
        assert np.array_equal(one, next(iter(loader))["image"])
    assert one.shape == (2, 1, 4, 8, 16)


def test_it_follows_the_grids_of_a_case():
    """`resample_to(key)` needs stored grids; an order of the chain itself has precedence."""
    other = vp.Volume(STACK[:3], axes="zyx", affine=np.diag([0.25, 0.5, 4, 1]))
    pipe = opened(other=other).resample_to("image").lazy_patch((6, 8, 16))
    sample = next(iter(vp.adapters.ToAxes("zyx")(pipe)))
    assert sample["other"].shape == sample["image"].shape == (1, 6, 8, 16)
    own = opened().to_axes("xyz")
    assert next(iter(vp.adapters.ToAxes("zyx")(own)))["image"].shape == (1, 24, 20, 6)


def test_other_letters_are_refused():
    """When the adapter is made."""
    with pytest.raises(ValueError, match="letters x, y and z"):
        vp.adapters.ToAxes("zyxc")


@pytest.mark.parametrize(("axis", "number"), [("z", 0), ("y", 1), ("x", 2)])
def test_a_flip_by_name_is_that_of_numpy(axis, number):
    """After ``to_axes("zyx")`` the name is that of the result; before it, that of the file."""
    voxels = np.arange(24.0).reshape(2, 3, 4)
    for chain in (
        vp.from_cases([{"image": voxels}]).open_volume(axes="zyx").to_axes("zyx").flip(axis),
        vp.from_cases([{"image": voxels}]).open_volume(axes="zyx").flip(axis).to_axes("zyx"),
    ):
        result = np.asarray(next(iter(chain))["image"].realize())[0]
        np.testing.assert_array_equal(result, np.flip(voxels, number))
