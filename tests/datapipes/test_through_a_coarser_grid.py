"""Low resolution before a spatial pipe: two grids."""

from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.datapipes.cost import explain

SHAPE = (40, 36, 32)
VOLUME = np.random.default_rng(0).normal(100, 20, SHAPE).astype(np.float32)


def opened(volume: Any = VOLUME) -> Any:
    return vp.from_cases([{"image": vp.Volume(volume, affine=np.diag([1, 1.1, 1.3, 1]))}])


def middle(pipe: Any, size: Any = 12) -> Any:
    return next(iter(pipe.center_crop(size)))["image"]


@settings(max_examples=30, deadline=None)
@given(
    factor=st.sampled_from([1.7, 2, 2.5, 3, 5]),
    axes=st.sampled_from([0, 1, 2, None]),
    start=st.tuples(*[st.integers(0, 18)] * 3),
    first=st.sampled_from([0, 90, (3, 9, -4)]),
    size=st.integers(1, 14),
)
def test_a_patch_is_the_part_of_the_whole(
    factor: float, axes: Any, start: Any, first: Any, size: int
) -> None:
    """Wherever it lies and whatever way is taken, also across the faces."""
    pipe = opened().open_volume().rotate(first)
    pipe = pipe.low_resolution(factor) if axes is None else pipe.anisotropy(factor, axes=axes)
    pipe = pipe.rotate((5, -8, 20))
    whole = next(iter(pipe))["image"].realize()

    part = next(iter(pipe.crop(start, size)))["image"].realize()

    i, j, k = start
    expected = whole[:, i : i + size, j : j + size, k : k + size]
    assert np.abs(part - expected).max() < 2e-4


def test_no_interpolation_more_where_none_came_before() -> None:
    """Two with one before, one where voxels were only moved; one read of a part."""
    counts = []
    for pipe in (opened().open_volume().flip(0), opened().open_volume().rotate(5)):
        patch = middle(pipe.anisotropy(3, axes=0).rotate(10), 8)
        before = IO_COUNTERS.snapshot()
        patch.realize()
        done = IO_COUNTERS.snapshot() - before
        counts.append((done.interpolations, done.copies, done.reads))
        assert patch.reads()[0].region.size < VOLUME.size / 4

    assert counts == [(1, 1, 1), (2, 0, 1)]


def test_explain_says_what_it_costs_and_why() -> None:
    """The op, its line and the two grids."""
    text = explain(opened().open_volume().rotate(5).low_resolution(2).rotate(5))

    assert "not fused: image is sampled anew after low_resolution at .low_resolution(2)" in text
    assert "(a coarser grid is made of the voxels so far, and what follows is sampled" in text
    assert "2 interpolations" in text
