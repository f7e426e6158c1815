"""``foreground_crop(above=)`` by numbers that a catalog has."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.spatial import ForegroundCrop


def opened() -> Any:
    image = np.zeros((10, 9, 8), np.int16)
    image[2:7, 3:8, 1:6] = 100
    image[4, 4, 4] = 900
    return vp.from_cases([{"image": image}]).open_volume(), image


@pytest.mark.parametrize(
    ("above", "number"),
    [("mean", lambda v: v.mean()), ("p50", lambda v: 0), ("p99.5", lambda v: 100)],
    ids=["mean", "median", "tail"],
)
def test_the_number_is_that_of_the_volume(above: str, number: Any) -> None:
    """As if it had been written."""
    pipe, image = opened()
    found = next(iter(pipe.foreground_crop(above=above)))["image"]
    wanted = next(iter(pipe.foreground_crop(above=float(number(image)))))["image"]

    assert found.plan.source_region() == wanted.plan.source_region()
    assert found.shape == ((1, 1, 1, 1) if above == "p99.5" else (1, 5, 5, 5))


@pytest.mark.parametrize("above", ["median", "p101", "p", "50"])
def test_other_words_are_refused(above: str) -> None:
    """With what there is."""
    with pytest.raises(ValueError, match="percentile"):
        ForegroundCrop(above=above)
