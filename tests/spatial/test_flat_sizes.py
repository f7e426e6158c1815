"""One number is for the plane of 2-D data: no op gives them voxels along K."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import voxpipe as vp


def opened() -> Any:
    label = np.zeros((40, 36, 1), np.uint8)
    label[10:14, 20:26] = 1
    return vp.from_cases([{"image": label * np.int16(5), "label": label}]).open_volume()


CHAINS = {
    "crop_or_pad": lambda p, size: p.crop_or_pad(size),
    "center_crop": lambda p, size: p.center_crop(size),
    "label_crop": lambda p, size: p.label_crop(size),
    "lazy_patch": lambda p, size: p.lazy_patch(size),
    "masked": lambda p, size: p.lazy_patch(size, mask="label", class_weights={1: 1}),
    "shares": lambda p, size: p.lazy_patch(size, mask="label", min_share=0.01),
    "region": lambda p, size: p.lazy_patch(size, region=(32, 32, 1)),
    "shuffled": lambda p, size: p.lazy_patch(size, samples_per_volume=2).shuffle_plans(),
    "turned": lambda p, size: p.flip().lazy_patch(size, mask="label"),
}


@pytest.mark.parametrize("size", [8, (8, 8, 1), (8, 8, None)], ids=["one", "three", "kept"])
@pytest.mark.parametrize("chain", CHAINS)
def test_every_form_of_a_size_is_the_same(chain: str, size: Any) -> None:
    """8, (8, 8, 1) and (8, 8, None) give one slice of 8 by 8."""
    if chain == "region" and size != (8, 8, 1):
        pytest.skip("a region is checked at construction, where the grid is not known")
    for patch in next(iter(CHAINS[chain](opened(), size))).values():
        assert patch.shape == (1, 8, 8, 1)
        assert patch.realize().shape == (1, 8, 8, 1)
        assert patch.plan.matrix[2].tolist() == [0, 0, 1, 0]


def test_a_grid_of_patches_covers_a_slice() -> None:
    """The overlap is for the plane, too."""
    shapes = {s["image"].shape for s in opened().lazy_patch(16, sampling="grid", overlap=4)}
    assert shapes == {(1, 16, 16, 1)}


def test_flips_stay_in_the_plane() -> None:
    """The third axis points where it did."""
    for pipe in (opened().flip(), opened().flip(one=True)):
        plan = next(iter(pipe))["image"].plan
        assert plan.matrix[2].tolist() == [0, 0, 1, 0]
        assert plan.matrix[:2, :2].diagonal().min() == -1
    assert next(iter(opened().flip(2)))["image"].plan.matrix[2, 2] == -1


def test_an_axis_that_is_kept_has_all_its_voxels() -> None:
    """Also of volumes."""
    case = {"image": np.zeros((9, 8, 7), np.uint8)}
    pipe = vp.from_cases([case]).open_volume()
    for chain in (pipe.crop_or_pad((4, 12, None)), pipe.crop_or_pad([4, 12, None])):
        assert next(iter(chain))["image"].shape == (1, 4, 12, 7)
    assert next(iter(pipe.lazy_patch((4, None, 3))))["image"].shape == (1, 4, 8, 3)
