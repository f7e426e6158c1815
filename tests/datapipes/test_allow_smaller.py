"""``lazy_patch(allow_smaller=True)``: a shorter axis gives a shorter patch, as in MONAI."""

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core.errors import PatchSizeError

transforms = pytest.importorskip("monai.transforms")

PLACES = {
    "uniform": {},
    "mask": {"mask": "label", "class_weights": {0: 1, "other": 1}},
    "weights": {"weights": "label"},
    "region": {"region": 8},
}


def case(*shape):
    image = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    label = np.zeros(shape, np.uint8)
    label[tuple(n // 2 for n in shape)] = 1
    return {"image": image, "label": label}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("shape", [(3, 9, 4), (3, 4, 2), (9, 9, 9)])
def test_sizes_are_monais(shape, place):
    """Each axis has the shorter of both lengths, and the voxels are those of the volume."""
    data = case(*shape)
    crop = transforms.RandCropByPosNegLabeld(
        ("image", "label"), "label", (6, 6, 6), num_samples=3, allow_smaller=True
    )
    monai = crop({key: array[None] for key, array in data.items()})
    pipe = vp.from_cases([data]).open_volume(labels=("label",))
    pipe = pipe.lazy_patch(6, samples_per_volume=3, allow_smaller=True, **PLACES[place])

    patches = [patch["image"].realize()[0] for patch in pipe]

    assert {p.shape for p in patches} == {tuple(m["image"].shape[1:]) for m in monai}
    for patch in patches:
        start = np.unravel_index(int(patch[0, 0, 0]), shape)
        box = tuple(slice(a, a + n) for a, n in zip(start, patch.shape, strict=True))
        assert (patch == data["image"][box]).all()


def test_a_small_volume_is_one_window_of_a_grid():
    """Its size is that of the volume; without the option it is padded."""
    pipe = vp.from_cases([case(3, 9, 4)]).open_volume()

    grid = pipe.lazy_patch(6, sampling="grid", allow_smaller=True)

    assert [patch["image"].shape for patch in grid] == [(1, 3, 6, 4)] * 2
    with pytest.warns(UserWarning, match="smaller than the patch"):
        assert next(iter(pipe.lazy_patch(6)))["image"].realize().shape == (1, 6, 6, 6)


def test_it_is_a_flag():
    """Anything else is refused at construction."""
    pipe = vp.from_cases([case(3, 3, 3)]).open_volume()
    with pytest.raises((PatchSizeError, ValueError), match="allow_smaller is True or False"):
        pipe.lazy_patch(6, allow_smaller="yes")


def test_patches_of_whole_volumes_pad_to_one_batch():
    """A pad after it gives patches of one size again, in workers too."""
    pipe = vp.from_cases([case(3, 9, 4), case(9, 9, 9)]).open_volume(labels=("label",))
    pipe = pipe.lazy_patch(6, allow_smaller=True).pad(size=6).batch_patches(2)

    loader = vp.DataLoader2(pipe, None, vp.MultiProcessingReadingService(num_workers=1))
    (batch,) = loader
    loader.shutdown()

    assert batch["image"].shape == (2, 1, 6, 6, 6)
