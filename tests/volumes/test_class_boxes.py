"""Boxes of classes, in whatever pieces a volume comes, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.volumes import Volume, volume_statistics
from voxpipe.volumes.catalog import whole_pass
from voxpipe.volumes.catalog.whole_pass import MOST_LABELS, ClassBoxes


@given(
    seed=st.integers(0, 2**20),
    dtype=st.sampled_from([np.uint8, np.int16, np.int32, np.uint64]),
    most=st.sampled_from([1, 30, 9999]),
    channels=st.integers(1, 2),
    few=st.sampled_from([0, 24]),
)
def test_boxes_are_those_of_numpy(
    seed: int, dtype: Any, most: int, channels: int, few: int
) -> None:
    """Of every class, negative ones included; over all channels."""
    numbers = np.random.default_rng(seed)
    low = 0 if np.dtype(dtype).kind == "u" else -3
    array = np.zeros((channels, 6, 5, 4), dtype)
    for _ in range(4):
        place = tuple(numbers.integers(0, n) for n in array.shape)
        array[place] = numbers.integers(low, 200)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whole_pass, "SLAB_VOXELS", most)
        patch.setattr(whole_pass, "_FEW", few)
        found = volume_statistics(Volume(array, kind="label")).boxes

    assert [value for value, _ in found] == np.unique(array).tolist()
    for value, box in found:
        places = np.argwhere(array == value)[:, 1:]
        assert list(box) == [*places.min(axis=0), *(places.max(axis=0) + 1)]


@pytest.mark.parametrize(
    "array", [np.ones((1, 2, 2, 2)), np.array([[[[0, MOST_LABELS]]]])], ids=["floats", "instances"]
)
def test_what_has_no_classes_has_no_boxes(array: Any) -> None:
    """Floats, and labels that spread too far; also when a later piece shows it."""
    boxes = ClassBoxes()
    boxes.add(np.zeros((1, 1, 1, 1), np.uint8), (0, 0, 0))
    boxes.add(array, (1, 0, 0))
    boxes.add(np.zeros((1, 1, 1, 1), np.uint8), (5, 0, 0))

    assert boxes.table() == ()


def test_intensities_have_no_boxes() -> None:
    """Only volumes of the kind label have classes."""
    assert volume_statistics(Volume(np.ones((2, 2, 2), np.uint8))).boxes == ()
