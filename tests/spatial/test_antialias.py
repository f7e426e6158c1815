"""Smoothing before down-sampling: how much, where, once for a whole chain, and on what was read."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.ndimage import gaussian_filter, map_coordinates

from voxpipe.core import IO_COUNTERS, Grid, Region
from voxpipe.spatial import (
    Elastic,
    LazyPatch,
    Policy,
    Resize,
    Rotate,
    SourceVoxels,
    SpatialOp,
    SpatialPlan,
    Step,
    TransformChain,
    Zoom,
    resample,
)
from voxpipe.spatial.plans.policy import Padding
from voxpipe.spatial.plans.pull_back import sigmas

SMOOTH = Policy(antialias=True)
PADDINGS: tuple[Padding, ...] = ("border", "reflection", "constant", "zeros")


def of(shape: tuple[int, int, int], *ops: SpatialOp) -> SpatialPlan:
    plan = SpatialPlan.identity(Grid(shape, np.eye(4)))
    for op in ops:
        drawn = op.draw(np.random.default_rng(0), plan)
        assert drawn is not None
        plan = op.then(plan, drawn)
    return plan


def sampled(plan: SpatialPlan, volume: np.ndarray, policy: Policy, dtype: Any = np.float32) -> Any:
    out = np.empty((volume.shape[0], *plan.shape), dtype)
    source = SourceVoxels(volume, (0, 0, 0), Region.of_shape(volume.shape[1:]))
    resample(source, plan.matrix, policy, out, plan.kernel_stages)
    return out


def checkerboard(n: int = 32) -> np.ndarray:
    return (np.indices((n, n, n)).sum(axis=0) % 2 * 1000).astype(np.int16)[None]


def test_a_checkerboard_does_not_alias() -> None:
    """Taken at every fourth voxel it is one of its two colours; smoothed before it is grey."""
    plan = of((32, 32, 32)).crop((0, 0, 0), (32, 32, 32))
    fourth = plan.then(np.diag([4.0, 4, 4, 1]), (8, 8, 8), lattice=False)
    board = checkerboard()

    aliased, grey = sampled(fourth, board, Policy()), sampled(fourth, board, SMOOTH)

    assert np.ptp(aliased) == 0
    assert aliased.mean() == 0
    inner = grey[:, 2:-2, 2:-2, 2:-2]
    assert np.abs(inner - 500).max() < 0.5


def test_a_chain_is_smoothed_once_for_all_of_it() -> None:
    """Half and half again is a quarter: the same bits, one interpolation, and not two blurs."""
    volume = np.random.default_rng(0).integers(0, 1000, (1, 32, 32, 32), np.int16)
    twice = of((32, 32, 32), Zoom(0.5), Zoom(0.5)).crop((12, 12, 12), (8, 8, 8))
    once = of((32, 32, 32), Zoom(0.25)).crop((12, 12, 12), (8, 8, 8))
    before = IO_COUNTERS.snapshot()

    fused = sampled(twice, volume, SMOOTH)

    assert (IO_COUNTERS - before).interpolations == 1
    assert sigmas(twice.rows) == (1.5, 1.5, 1.5)
    assert np.array_equal(fused, sampled(once, volume, SMOOTH))
    half = of((32, 32, 32), Zoom(0.5))
    apart = sampled(half, sampled(half, volume, SMOOTH), SMOOTH)[:, 12:20, 12:20, 12:20]
    assert np.abs(apart - fused).max() > 10


def test_what_is_put_back_is_not_smoothed() -> None:
    """A chain that halves and doubles takes every voxel, so nothing is lost to a filter."""
    volume = np.random.default_rng(0).integers(0, 1000, (1, 9, 8, 7), np.int16)

    plan = of((9, 8, 7), Zoom(0.5), Zoom(2))

    assert np.array_equal(sampled(plan, volume, SMOOTH), sampled(plan, volume, Policy()))


@pytest.mark.parametrize(("padding", "mode"), [("border", "nearest"), ("reflection", "reflect")])
def test_it_is_the_gaussian_of_scikit_image(padding: Padding, mode: str) -> None:
    """Its resize is SciPy's Gaussian of (s - 1) / 2, then linear interpolation."""
    volume = np.random.default_rng(1).integers(0, 1000, (1, 24, 17, 12), np.int16)
    plan = of((24, 17, 12), Resize((6, 7, 12)))

    found = sampled(plan, volume, Policy("linear", padding, antialias=True))

    steps = np.array([24 / 6, 17 / 7, 1])
    smooth = gaussian_filter(volume[0].astype(float), (steps - 1) / 2, mode=mode, truncate=4.0)
    places = np.indices(plan.shape) + 0.5
    places = places * steps.reshape(3, 1, 1, 1) - 0.5
    expected = map_coordinates(smooth, places, order=1, mode=mode)
    assert np.abs(found[0] - expected).max() < 0.01


@given(st.floats(-180, 180), st.floats(0.1, 0.9))
def test_a_turn_changes_nothing_about_an_even_zoom(angle: float, factor: float) -> None:
    """The singular values are the factor's, whatever the direction; and a turn alone has none."""
    turned = of((9, 9, 9), Rotate((angle, 0, angle / 2)), Zoom(factor))
    straight = of((9, 9, 9), Rotate((angle, 0, angle / 2)))

    assert np.allclose(sigmas(turned.rows), (1 / factor - 1) / 2)
    assert np.allclose(sigmas(straight.rows), 0, atol=1e-6)


@given(st.lists(st.floats(-4, 4), min_size=9, max_size=9))
def test_oblique_directions_are_smoothed_enough(entries: list[float]) -> None:
    """Along each singular vector the separable Gaussian is at least as wide as the rule asks."""
    linear = np.reshape(entries, (3, 3))
    rows = np.column_stack([linear, np.zeros(3)])

    found = np.array(sigmas(tuple(rows.ravel().tolist())))  # type: ignore[arg-type]

    directions, steps, _ = np.linalg.svd(linear)
    for direction, step in zip(directions.T, steps, strict=True):
        wanted = max(0.0, (step - 1) / 2)
        assert np.sqrt(((found * direction) ** 2).sum()) >= wanted - 1e-6


@pytest.mark.parametrize("padding", PADDINGS)
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_the_region_has_the_halo_and_nothing_else_counts(mode: Any, padding: Padding) -> None:
    """Voxels outside of the region that is asked for may be anything; those of the halo count."""
    volume = np.random.default_rng(2).uniform(0, 1000, (1, 40, 40, 40))
    plan = of((40, 40, 40), Rotate((10, 5, 20)), Zoom(0.4)).crop((16, 18, 17), (6, 5, 6))
    policy = Policy(mode, padding, antialias=True)
    region, bare = plan.source_region(policy), plan.source_region(Policy(mode, padding))
    poisoned = np.full_like(volume, np.nan)
    poisoned[(slice(None), *region.slices)] = volume[(slice(None), *region.slices)]

    found = sampled(plan, poisoned, policy, np.float64)

    assert np.array_equal(found, sampled(plan, volume, policy, np.float64))
    assert bare != region
    assert bare.intersect(region) == bare
    assert region.size < 40**3


@pytest.mark.parametrize("padding", ["border", "reflection", "constant"])
def test_a_constant_volume_stays_constant(padding: Padding) -> None:
    """Up to its faces, whatever lies beyond."""
    volume = np.full((1, 12, 12, 12), 300, np.int16)
    plan = of((12, 12, 12), Resize((3, 4, 5)))

    found = sampled(plan, volume, Policy("linear", padding, fill=-1000, antialias=True))

    assert np.abs(found - 300).max() < 1e-4


def test_zeros_outside_darken_the_faces() -> None:
    """They count as voxels there, as in the sampling."""
    volume = np.full((1, 16, 16, 16), 300, np.int16)
    plan = of((16, 16, 16), Resize((4, 4, 4)))

    found = sampled(plan, volume, Policy("linear", "zeros", antialias=True))

    assert found[0, 0, 2, 2] < found[0, 1, 2, 2] < 301


def test_slope_and_intercept_come_before() -> None:
    """What is smoothed are values."""
    stored = np.random.default_rng(3).integers(0, 1000, (1, 16, 16, 16), np.int16)
    plan = of((16, 16, 16), Resize((4, 4, 4)))
    out = np.empty((1, 4, 4, 4), np.float32)

    source = SourceVoxels(stored, (0, 0, 0), Region.of_shape((16, 16, 16)), 0.5, -1024.0)
    resample(source, plan.matrix, SMOOTH, out, plan.kernel_stages)

    assert np.allclose(out, sampled(plan, stored, SMOOTH) * 0.5 - 1024, atol=1e-3)


def test_displacements_are_smoothed_by_the_matrix() -> None:
    """A chain with an elastic op has the same filter, and a region that suffices."""
    volume = np.random.default_rng(4).uniform(0, 1000, (1, 40, 40, 40))
    plan = of((40, 40, 40), Elastic(2, spacing=12), Zoom(0.4)).crop((16, 18, 17), (6, 5, 6))
    region = plan.source_region(SMOOTH)
    poisoned = np.full_like(volume, np.nan)
    poisoned[(slice(None), *region.slices)] = volume[(slice(None), *region.slices)]

    found = sampled(plan, poisoned, SMOOTH, np.float64)

    assert np.array_equal(found, sampled(plan, volume, SMOOTH, np.float64))
    assert not np.allclose(found, sampled(plan, volume, Policy(), np.float64))


def test_only_what_is_read_is_smoothed() -> None:
    """A patch reads its own region once, and comes out as the part of the whole that it is."""
    volume = np.random.default_rng(5).integers(0, 1000, (1, 64, 64, 64), np.int16)

    asked: list[Region] = []

    class Stored:
        name, kind, shape, dtype = "ct", "intensity", volume.shape, volume.dtype
        grid = Grid((64, 64, 64), np.eye(4))

        def read(self, region: Region) -> Any:
            asked.append(region)
            array = volume[(slice(None), *region.slices)]
            return type("Voxels", (), {"array": array, "slope": 1.0, "intercept": 0.0})

    stored: Any = Stored()
    pending = TransformChain({"ct": stored}).then(Step(Resize((16, 16, 16)), "resize"))
    whole = LazyPatch(stored, pending, SMOOTH)
    part = whole.plan.crop((4, 5, 6), (3, 3, 3))

    out = whole.realize(np.empty((1, 3, 3, 3), np.float32), part)

    assert len(asked) == 1
    assert asked[0].size == np.prod([2 * 6 + 2 * 4 + 2] * 3)
    assert np.array_equal(out, whole.realize()[:, 4:7, 5:8, 6:9])


def test_nearest_takes_voxels_as_they_are() -> None:
    """So asking for both is an error, not a silent choice."""
    with pytest.raises(ValueError, match="mode='nearest' does not do that"):
        Policy("nearest", antialias=True)
    with pytest.raises(ValueError, match="antialias is False, True or 'level', got 'yes'"):
        Policy(antialias="yes")  # type: ignore[arg-type]
