"""Along which axis anisotropy acts: one that has more than one voxel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.datapipes.epoch import set_epoch
from voxpipe.intensity import Anisotropy, Gamma
from voxpipe.spatial import On, OneOf

PLANE = np.random.default_rng(0).normal(size=(14, 12, 1)).astype(np.float32)
SOLID = np.random.default_rng(0).normal(size=(14, 12, 10)).astype(np.float32)
CASES = 24


def opened(image: Any) -> Any:
    pipe: Any = vp.from_cases([{"image": image}] * CASES).open_volume()
    set_epoch(pipe, 1, 0)
    return pipe


def axes_of(pipe: Any, name: str = "anisotropy") -> set[int]:
    """Which are drawn, and that each draw is seen in the voxels."""
    found = set()
    for sample in pipe:
        patch = sample["image"]
        drawn = patch.draws[name]
        found.add(drawn["axis"] if name == "anisotropy" else drawn["drawn"][0][0]["axis"])
        untouched = sample["image"].volume.read(patch.source_region).values()
        assert patch.shape != untouched.shape or not np.allclose(patch.realize(), untouched)
    return found


def test_of_a_plane_it_is_one_of_the_plane() -> None:
    """A third of all draws did nothing."""
    assert axes_of(opened(PLANE).anisotropy(3)) == {0, 1}


def test_what_turns_a_plane_turns_its_axes() -> None:
    assert axes_of(opened(PLANE).rotate90(axes=(0, 2)).anisotropy(3)) == {1, 2}


@pytest.mark.parametrize("member", [Anisotropy(3), On("image", Anisotropy(3))])
def test_in_a_choice_too(member: Any) -> None:
    nested = OneOf([[member, Gamma((0.9, 1.1))]])

    assert axes_of(opened(PLANE).one_of([[member]]), "one_of values") == {0, 1}
    for sample in opened(PLANE).one_of([nested]):
        ((inner,),) = sample["image"].draws["one_of values"]["drawn"]
        assert inner["drawn"][0][0]["axis"] in (0, 1)


def test_a_patch_of_one_slice_has_a_volume_around_it() -> None:
    """All three are drawn, the same for patches of any size."""
    thin = opened(SOLID).lazy_patch((14, 12, 1)).anisotropy(3)
    thick = opened(SOLID).lazy_patch((14, 12, 9)).anisotropy(3)

    assert axes_of(thin) == axes_of(thick) == {0, 1, 2}


def test_a_volume_draws_what_it_drew() -> None:
    """Where all axes have voxels, nothing is drawn otherwise than by the op itself."""
    pipe = opened(SOLID).anisotropy((1.5, 4))
    for sample in pipe:
        patch = sample["image"]
        (step,) = patch.values
        assert patch.draws["anisotropy"] == step.draw(patch._stream(step).generator(), step.op)


def test_an_axis_of_one_voxel_that_is_named_alone_stays() -> None:
    """Nothing to be coarser: the image stays as it is, for data sets of planes and volumes."""
    patch = next(iter(opened(PLANE).anisotropy(3, axes=2)))["image"]

    assert np.array_equal(patch.realize()[0], PLANE)
    assert patch.draws["anisotropy"]["axis"] == 2


def test_a_record_is_replayed_along_its_axis() -> None:
    patch = next(iter(opened(PLANE).anisotropy(3)))["image"]
    again = next(iter(opened(PLANE).anisotropy(3).replay(patch.draws)))["image"]

    assert again.draws == patch.draws
    assert np.array_equal(again.realize(), patch.realize())
