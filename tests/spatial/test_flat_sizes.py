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
    "crop": lambda p, size: p.crop((2, 3, 0), size),
    "crop_about": lambda p, size: p.crop(center=(20, 18, 0), size=size),
    "label_crop": lambda p, size: p.label_crop(size),
    "lazy_patch": lambda p, size: p.lazy_patch(size),
    "masked": lambda p, size: p.lazy_patch(size, mask="label", class_weights={1: 1}),
    "shares": lambda p, size: p.lazy_patch(size, mask="label", min_fraction=0.01),
    "weighted": lambda p, size: p.lazy_patch(size, weights="label"),
    "region": lambda p, size: p.lazy_patch(size, region=(32, 32, 1)),
    "shuffled": lambda p, size: p.lazy_patch(size, samples_per_volume=2).shuffle_plans(),
    "turned": lambda p, size: p.flip().lazy_patch(size, mask="label"),
}


# A region is checked at construction, where the grid is not known: it takes three numbers.
FORMS = [
    (chain, size)
    for chain in CHAINS
    for size in (8, (8, 8, 1), (8, 8, None))
    if chain != "region" or size == (8, 8, 1)
]


@pytest.mark.parametrize(("chain", "size"), FORMS)
def test_every_form_of_a_size_is_the_same(chain: str, size: Any) -> None:
    """8, (8, 8, 1) and (8, 8, None) give one slice of 8 by 8."""
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
    for pipe in (opened().flip(), opened().flip(exactly_one=True)):
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


@pytest.mark.parametrize("size", [(8, 9, None), (8, None, 1)])
def test_a_crop_keeps_an_axis(size: Any) -> None:
    """All of it: to begin elsewhere than at its first voxel is an error."""
    kept = [n if n is not None else m for n, m in zip(size, (40, 36, 1), strict=True)]
    start = [2 if n is not None else 0 for n in (*size[:2], None)]

    assert next(iter(opened().crop(start, size)))["image"].shape == (1, *kept)
    about = next(iter(opened().crop(center=(20, 18, 0), size=size)))["image"]
    assert about.shape == (1, *kept)
    with pytest.raises(vp.errors.PatchSizeError, match="leaves the grid"):
        next(iter(opened().crop((3, 3, 3), (8, 8, None))))["image"].shape  # noqa: B018


def test_the_longest_axis_sets_no_other_one_of_a_plane() -> None:
    """resize(80, longest=True) of 40 by 36 makes 80 by 72, one slice of it."""
    patch = next(iter(opened().resize(80, longest=True)))["image"]

    assert patch.shape == (1, 80, 72, 1)


def test_a_bundle_flips_as_flip_does() -> None:
    """augment(flip=1) of 2-D data leaves K as it points; three chances say what they say."""
    patch = next(iter(opened().augment(flip=1)))["image"]
    each = next(iter(opened().augment(flip=(0, 0, 1))))["image"]

    assert patch.plan.matrix.diagonal().tolist() == [-1, -1, 1, 1]
    assert each.plan.matrix.diagonal().tolist() == [1, 1, -1, 1]


def test_one_overlap_is_for_the_plane() -> None:
    """Patches of one slice share nothing along K, whoever leaves its size to whom."""
    chains = [
        opened().lazy_patch(size, sampling="grid", overlap=4)
        for size in (16, (16, 16, 1), (16, 16, None))
    ]
    places = [[s["image"].plan.matrix[:3, 3].tolist() for s in chain] for chain in chains]

    assert places[0] == places[1] == places[2]
    with pytest.raises(vp.errors.PatchSizeError, match="overlap must be smaller"):
        opened().lazy_patch((16, 16, 1), sampling="grid", overlap=(4, 4, 1))
