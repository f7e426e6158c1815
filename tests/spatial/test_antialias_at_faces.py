"""What smoothing before taking fewer voxels brings in from beyond the face of a hard crop."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import voxpipe as vp

EDGE = 64
"""Where the crop ends, and 1 begins where there was 0."""


def beyond(shift: float, part: float, *, flush: bool = False) -> NDArray[np.float32]:
    """What comes in of a step that begins at the face, from the outermost voxel inwards."""
    step = np.zeros((2 * EDGE, 2, 2), np.float32)
    step[EDGE:] = 1
    pipe: Any = vp.from_cases([{"image": step}]).open_volume()
    pipe = pipe.translate((-shift, 0, 0)) if shift else pipe
    pipe = pipe.crop((0, 0, 0), (EDGE, 2, 2), hard=True)
    pipe = pipe.flush() if flush else pipe
    pipe = pipe.zoom((part, 1, 1), keep_size=False, antialias=True)
    return np.asarray(next(iter(pipe))["image"])[0, ::-1, 0, 0]


@pytest.mark.parametrize("part", [1 / 2, 1 / 4, 1 / 8, 1 / 16])
def test_a_hard_crop_of_whole_voxels_ends_what_is_smoothed(part: float) -> None:
    assert not beyond(0, part).any()


@pytest.mark.parametrize("part", [1 / 2, 1 / 4, 1 / 8, 1 / 16])
def test_after_an_interpolation_little_comes_in_from_beyond(part: float) -> None:
    """As much as docs/ops.md says: 16 % in the outermost voxel, 0.1 % in the next one."""
    outermost, following, *others = beyond(0.5, part)

    assert 0 < outermost < 0.16
    assert following < 1e-3
    assert max(others) == pytest.approx(0, abs=1e-6)


def test_after_a_flush_nothing_comes_in_from_beyond() -> None:
    """But what the interpolation itself took of the voxel at the face."""
    before = beyond(0.5, 1 / 4, flush=True)

    assert before[0] <= 0.5 * 0.5  # half of the last voxel, in a mean of some
    assert not beyond(-0.5, 1 / 4, flush=True).any()
    assert beyond(-0.5, 1 / 4).any()
