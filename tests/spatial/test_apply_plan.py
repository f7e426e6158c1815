"""A prediction comes back onto its volume by one call."""

from __future__ import annotations

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.spatial import LABEL, Policy, apply_plan


@pytest.mark.parametrize("flushed", [False, True])
def test_whole_voxels_come_back_bit_for_bit(flushed: bool) -> None:
    """What the patch left out is background; int64 beyond float64 is kept."""
    volume = np.arange(9 * 8 * 7, dtype=np.int64).reshape(9, 8, 7) + 2**60
    pipe = vp.from_cases([{"label": volume}]).open_volume().flip(0)
    pipe = (pipe.flush() if flushed else pipe).rotate90(1).crop((1, 2, 0), (5, 5, 6))
    patch = next(iter(pipe))["label"]
    back = apply_plan(patch.whole_plan.inverse(), patch.realize(), LABEL)

    inside = back[0] != 0
    assert inside.sum() == 5 * 5 * 6
    assert back.dtype == np.int64
    assert np.array_equal(back[0][inside], volume[inside])


def test_probabilities_are_interpolated() -> None:
    """A turned patch of a constant is that constant where the patch was, and 0 around it."""
    pipe = vp.from_cases([{"image": np.zeros((12, 12, 12))}]).open_volume()
    patch = next(iter(pipe.rotate((0, 0, 20)).crop((3, 3, 3), (6, 6, 6))))["image"]
    back = apply_plan(
        patch.whole_plan.inverse(), np.ones((2, 6, 6, 6)), Policy("linear", "constant")
    )
    assert back.shape == (2, 12, 12, 12)
    assert back.dtype == np.float32
    assert back[:, 5:7, 5:7, 5:7].min() == 1
    assert back[:, 0].max() == 0
    with pytest.raises(ValueError, match="begins at"):
        apply_plan(patch.whole_plan.inverse(), np.ones((5, 6, 6)))
