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


@pytest.mark.parametrize("axes", [1, 2, 3])
@pytest.mark.parametrize("offset", [0.05, 0.3, 0.5, 0.8])
def test_each_face_adds_a_sixth_of_the_step_at_most(offset: float, axes: int) -> None:
    """As docs/ops.md says of edges and corners, beside what the eager order gives."""
    within, size = [axis < axes for axis in range(3)], 32
    places = np.indices([2 * size if cut else 2 for cut in within])
    step = (places[:axes] >= size).any(axis=0).astype(np.float32)
    opened: Any = vp.from_cases([{"image": step}]).open_volume()
    moved = opened.translate([-offset * cut for cut in within])
    cropped = moved.crop((0, 0, 0), [size if cut else 2 for cut in within], hard=True)
    for part in (1 / 2, 1 / 4, 1 / 8, 1 / 16):
        factors = [part if cut else 1 for cut in within]
        lazy, eager = (
            np.asarray(next(iter(pipe.zoom(factors, keep_size=False, antialias=True)))["image"])[0]
            for pipe in (cropped, cropped.flush())
        )
        apart = np.abs(lazy - eager)
        inside = tuple(slice(-1) if cut else slice(None) for cut in within)

        assert 1e-3 < apart.max() < 1 - (1 - 0.16) ** axes
        assert apart[inside].max(initial=0) < 1e-3 * axes


def test_explain_says_that_smoothing_looks_beyond_a_crop() -> None:
    """Where it does: not after whole voxels, a flush, or without smoothing."""
    opened: Any = vp.from_cases([{"image": np.zeros((32, 32, 32), np.float32)}]).open_volume()

    def told(pipe: Any, **smooth: Any) -> bool:
        return (
            "which the smoothing looks beyond without a flush() after it"
            in next(iter(pipe.zoom(0.5, keep_size=False, **smooth)))["image"].explain()
        )

    turned = opened.rotate((0, 0, 20)).center_crop(16, hard=True)
    whole = opened.flip(0).center_crop(16, hard=True)
    pipes = (turned, True), (turned, False), (whole, True), (turned.flush(), True)
    assert [told(pipe, antialias=asked) for pipe, asked in pipes] == [True, False, False, False]


def test_after_a_flush_nothing_comes_in_from_beyond() -> None:
    """But what the interpolation itself took of the voxel at the face."""
    before = beyond(0.5, 1 / 4, flush=True)

    assert before[0] <= 0.5 * 0.5  # half of the last voxel, in a mean of some
    assert not beyond(-0.5, 1 / 4, flush=True).any()
    assert beyond(-0.5, 1 / 4).any()
