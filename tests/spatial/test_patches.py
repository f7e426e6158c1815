"""Where patches lie: uniform, on a grid, larger than the volume."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.core import Grid, Region, Stream
from voxpipe.core.errors import PatchSizeError
from voxpipe.spatial import (
    LABEL,
    FixedPatch,
    GridPatch,
    PatchLargerThanVolume,
    Policy,
    SpatialPlan,
    UniformPatch,
    positions,
)


def plan_of(*shape: int) -> SpatialPlan:
    i, j, k = shape
    return SpatialPlan.identity(Grid((i, j, k), np.eye(4)))


def test_every_start_comes_up_equally_often() -> None:
    """0 .. shape - size inclusive, within 5 sigma of 4000 draws; also with one place only."""
    starts = [
        UniformPatch((4, 8, 3)).draw(Stream(0, 0, (n,), "patch").generator(), plan_of(8, 8, 4))
        for n in range(4000)
    ]

    for axis, places in enumerate((5, 1, 2)):
        counts = np.bincount([drawn["start"][axis] for drawn in starts])
        assert len(counts) == places
        sigma = np.sqrt(4000 / places * (1 - 1 / places))
        assert np.all(np.abs(counts - 4000 / places) <= 5 * sigma)


SIZES = st.tuples(*[st.integers(1, 12)] * 3)


@given(shape=SIZES, size=SIZES, seed=st.integers(0, 2**32))
def test_uniform_patches_fit_or_are_centred(shape: Any, size: Any, seed: int) -> None:
    """A start lies in 0 .. shape - size, or the patch hangs over evenly."""
    drawn = UniformPatch(size).draw(np.random.default_rng(seed), plan_of(*shape))

    for a, s, n in zip(drawn["start"], size, shape, strict=True):
        assert 0 <= a <= n - s if s <= n else a == -((s - n) // 2)


def test_the_axes_are_independent() -> None:
    """All combinations of starts come up."""
    drawn = {
        tuple(UniformPatch((1, 1, 1)).draw(np.random.default_rng(n), plan_of(3, 3, 3))["start"])
        for n in range(500)
    }

    assert len(drawn) == 27


@pytest.mark.parametrize(
    ("op", "drawn"),
    [
        (UniformPatch((8, 4, 7)), {"start": [-1, 0, -2], "size": [8, 4, 7]}),
        (FixedPatch((-1, 0, -2), (8, 4, 7)), {"start": [-1, 0, -2], "size": [8, 4, 7]}),
    ],
)
def test_a_larger_patch_is_centred_with_one_stable_warning(op: Any, drawn: Any) -> None:
    """The message names patch and axes, not the volume, so that Python shows it once."""
    texts = set()
    for shape in ((6, 4, 3), (7, 4, 2)):
        plan = plan_of(*shape)
        with pytest.warns(PatchLargerThanVolume, match=r"\(8, 4, 7\) on axis 0, 2") as caught:
            patch = op.then(plan, op.draw(np.random.default_rng(0), plan))
        texts |= {str(w.message) for w in caught}
        assert patch.shape == (8, 4, 7)
        assert patch.source_region(LABEL) == Region((0, 0, 0), shape)

    assert len(texts) == 1
    assert op.draw(np.random.default_rng(0), plan_of(6, 4, 3)) == drawn


def test_a_fitting_patch_does_not_warn() -> None:
    """A patch of the very size of the volume is no larger than it."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        UniformPatch((4, 4, 4)).then(plan_of(4, 4, 4), {"start": [0, 0, 0], "size": [4, 4, 4]})


def test_a_patch_size_error_is_one_of_ours() -> None:
    """A wrong size says what a size is."""
    with pytest.raises(PatchSizeError, match="three integers >= 1") as caught:
        UniformPatch((96, 96))
    assert "2-D data have K = 1" in str(caught.value)


lengths = st.integers(1, 9)


@given(
    axes=st.lists(st.tuples(st.integers(1, 40), lengths, st.integers(0, 8)), min_size=3, max_size=3)
)
def test_a_grid_of_patches_covers_the_volume(axes: Any) -> None:
    """Every voxel is covered, no patch leaves, neighbours overlap enough, none is superfluous."""
    shape, size, overlap = zip(*((n, s, min(o, s - 1)) for n, s, o in axes), strict=True)

    starts = positions(shape, size, overlap)

    assert starts == sorted(set(starts))
    per_axis = [sorted({start[axis] for start in starts}) for axis in range(3)]
    assert starts == list(itertools.product(*per_axis))
    for found, n, s, o in zip(per_axis, shape, size, overlap, strict=True):
        if s >= n:
            assert found == [-((s - n) // 2)]
            continue
        assert (found[0], found[-1]) == (0, n - s)
        steps = np.diff(found)
        assert np.all((steps > 0) & (steps <= s - o))
        assert np.all(steps[:-1] == s - o)


def test_grid_patches_are_fixed_patches() -> None:
    """Each knows its place, so it can be cut without the others."""
    patches = GridPatch((4, 4, 4), (2, 0, 0)).patches((7, 4, 4))

    assert patches == tuple(FixedPatch((i, 0, 0), (4, 4, 4)) for i in (0, 2, 3))
    assert GridPatch((4, 4, 4), 1).overlap == (1, 1, 1)
    assert "overlap" in GridPatch((4, 4, 4), 1).describe()


def test_a_patch_of_a_patch_moves_the_origin() -> None:
    """Soft crops add up, and the affine follows."""
    grid = Grid((20, 20, 20), np.diag([2.0, 3.0, 4.0, 1]))
    plan = SpatialPlan.identity(grid).crop((5, 5, 5), (10, 10, 10)).crop((1, 2, 3), (4, 4, 4))

    assert plan.source_region(Policy()) == Region((6, 7, 8), (10, 11, 12))
    assert plan.affine[:3, 3].tolist() == [12, 21, 32]
