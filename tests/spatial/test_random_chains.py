"""Random chains of ops against float64 arithmetic: geometry, padding, types, reads."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from voxpipe.core import Grid, Region
from voxpipe.spatial import (
    Affine,
    Augment,
    Crop,
    CropOrPad,
    FixedPatch,
    Flip,
    Pad,
    Policy,
    Rotate,
    Rotate90,
    Shear,
    Source,
    SpatialOp,
    SpatialPlan,
    Translate,
    UniformPatch,
    Zoom,
    resample,
)
from voxpipe.spatial.plans.pull_back import COPY_TOLERANCE
from voxpipe.testing.spatial_oracle import sample_plan

# Values of 0 .. 200; the promise is 1e-5 of the range.
RANGE = 200
TOLERANCE = 1e-5 * RANGE
PADDINGS = ("border", "reflection", "constant", "zeros")
FILL = -7.0

sizes = st.integers(1, 12)
shapes = st.tuples(sizes, sizes, sizes)
spaces = st.sampled_from(["world", "voxel"])
flags = st.booleans()


def around(reach: float) -> st.SearchStrategy[tuple[float, ...]]:
    return st.tuples(*[st.floats(-reach, reach)] * 3)


factors = st.tuples(*[st.floats(0.5, 2)] * 3)
lattice_ops = st.one_of(
    st.builds(Flip, st.lists(st.sampled_from([0, 1, 2]), min_size=1, unique=True)),
    st.builds(Rotate90, st.integers(-3, 3), st.sampled_from([(0, 1), (2, 0), (1, 2)])),
    st.builds(Pad, st.tuples(*[st.tuples(*[st.integers(0, 4)] * 2)] * 3)),
    st.builds(CropOrPad, shapes, hard=flags),
    st.builds(FixedPatch, st.tuples(*[st.integers(0, 3)] * 3), st.just((1, 1, 1))),
)
moving_ops = st.one_of(
    st.builds(Rotate, around(180), space=spaces),
    st.builds(Zoom, factors, space=spaces),
    st.builds(Translate, around(4), space=spaces),
    st.builds(Shear, around(0.5), space=spaces),
    st.builds(
        Augment, around(30), factors, around(2), around(0.3), flip=st.just(0.5), space=spaces
    ),
)
lattice_chains = st.lists(lattice_ops, min_size=1, max_size=5)
chains = st.lists(st.one_of(lattice_ops, moving_ops), min_size=1, max_size=5)


@st.composite
def grids(draw: Any) -> Grid:
    """Oblique grids with voxels of different lengths, right- and left-handed."""
    turn = np.linalg.qr(np.random.default_rng(draw(st.integers(0, 99))).normal(size=(3, 3)))[0]
    affine = np.eye(4)
    affine[:3, :3] = turn @ np.diag(draw(st.tuples(*[st.floats(0.4, 5)] * 3)))
    affine[:3, 3] = draw(around(500))
    return Grid(draw(shapes), affine)


def composed(ops: list[SpatialOp], grid: Grid, seed: int = 0) -> SpatialPlan:
    plan = SpatialPlan.identity(grid)
    for op in ops:
        drawn = op.draw(np.random.default_rng(seed), plan)
        plan = plan if drawn is None else op.then(plan, drawn)
    return plan


def volume_on(grid: Grid, dtype: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return (rng.random((2, *grid.shape)) * RANGE).astype(dtype)


def realized(volume: np.ndarray, plan: SpatialPlan, policy: Policy, dtype: Any) -> np.ndarray:
    """Resample from exactly the source region, so that a larger need is an error."""
    region = plan.source_region(policy)
    array = volume[(slice(None), *region.slices)]
    out = np.empty((volume.shape[0], *plan.shape), dtype)
    source = Source(array, (region.start[0], region.start[1], region.start[2]), plan.bounds)
    resample(source, plan.matrix, policy, out, plan.lowered)
    return out


def far_from_ties(plan: SpatialPlan) -> np.ndarray:
    """Return the output voxels whose coordinates are not within 1e-6 of a decision.

    Exactly half way between two voxels, and exactly on the edge of fill, one ulp decides.
    """
    index = np.indices(plan.shape).reshape(3, -1)
    index = np.vstack([index, np.ones(index.shape[1])])
    maps = [plan.matrix, *(clip.matrix for clip in plan.lowered.clips)]
    halves = [np.abs((m @ index)[:3] % 1 - 0.5).min(axis=0) > 2e-6 for m in maps]
    return np.all(halves, axis=0).reshape(plan.shape)


@given(
    ops=chains,
    grid=grids(),
    dtype=st.sampled_from(["int16", "float32", ">i2", "uint8"]),
    padding=st.sampled_from(PADDINGS),
)
@settings(max_examples=150)
def test_linear_is_the_oracle_s(ops: Any, grid: Grid, dtype: str, padding: str) -> None:
    """One interpolation through the fused matrix, to 1e-5 of the range."""
    plan = composed(ops, grid)
    volume = volume_on(grid, dtype)
    policy = Policy("linear", padding, fill=FILL)

    found = realized(volume, plan, policy, np.float32)

    expected = sample_plan(volume, plan, policy)
    sure = far_from_ties(plan)
    # Only fill is a decision here: elsewhere linear sampling is continuous.
    decided = sure if padding == "constant" or plan.stages else np.ones_like(sure)
    # A copy may be off by its tolerance on each axis, and a neighbour by the whole range.
    tolerance = 3 * COPY_TOLERANCE * RANGE if plan.is_copy else TOLERANCE
    assert np.abs(found - expected)[:, decided].max(initial=0) <= tolerance


@given(ops=chains, grid=grids(), padding=st.sampled_from(PADDINGS))
@settings(max_examples=150)
def test_labels_are_the_oracle_s_and_closed(ops: Any, grid: Grid, padding: str) -> None:
    """Nearest gives the oracle's labels exactly, and none that was not stored, except fill."""
    plan = composed(ops, grid)
    labels = volume_on(grid, "uint8")
    policy = Policy("nearest", padding, fill=255)

    found = realized(labels, plan, policy, np.uint8)

    expected = sample_plan(labels, plan, policy)
    sure = far_from_ties(plan)
    assert np.array_equal(found[:, sure], expected[:, sure])
    fills = {0, 255}
    assert set(np.unique(found).tolist()) <= set(np.unique(labels).tolist()) | fills


@given(
    ops=lattice_chains,
    grid=grids(),
    padding=st.sampled_from(PADDINGS),
    dtype=st.sampled_from(["int32", "uint16", "float64", ">u2"]),
)
@settings(max_examples=150)
def test_lattice_chains_are_bit_exact(ops: Any, grid: Grid, padding: str, dtype: str) -> None:
    """Crops, pads, flips and turns move numbers that float32 cannot hold without a change."""
    plan = composed(ops, grid)
    high = {"int32": 2**24 + 1, "float64": 2**53 - 1}.get(dtype, 65535)
    volume = (high - volume_on(grid, "int64")).astype(dtype)
    policy = Policy("linear", padding, fill=3)
    native = np.dtype(dtype).newbyteorder("=")

    found = realized(volume, plan, policy, native)

    assert plan.is_copy
    assert plan.keeps_dtype
    # Float64 holds all these integers, so the oracle's nearest is exact.
    expected = sample_plan(volume, plan, Policy("nearest", padding, fill=3))
    assert np.array_equal(found, expected)


@given(
    ops=chains,
    grid=grids(),
    mode=st.sampled_from(["linear", "nearest"]),
    padding=st.sampled_from(PADDINGS),
)
@settings(max_examples=100)
def test_only_the_source_region_counts(ops: Any, grid: Grid, mode: str, padding: str) -> None:
    """NaN everywhere else leaves the result as it is, bit for bit."""
    plan = composed(ops, grid)
    volume = volume_on(grid, "float32")
    policy = Policy(mode, padding, fill=FILL)
    region = plan.source_region(policy)
    poisoned = np.full_like(volume, np.nan)
    kept = (slice(None), *region.slices)
    poisoned[kept] = volume[kept]
    out = np.empty((2, 2, *plan.shape), np.float32)

    for target, array in zip(out, (volume, poisoned), strict=True):
        source = Source(array, (0, 0, 0), plan.bounds)
        resample(source, plan.matrix, policy, target, plan.lowered)

    assert not np.isnan(out).any()
    assert np.array_equal(out[0], out[1])
    assert plan.bounds.contains(region)


@given(ops=chains, grid=grids())
@settings(max_examples=100)
def test_geometry_is_that_of_the_composed_matrix(ops: Any, grid: Grid) -> None:
    """The affine of the output, the grid, the inverse and the JSON form agree."""
    plan = composed(ops, grid)

    assert np.allclose(plan.affine, grid.affine @ plan.matrix)
    assert plan.grid.shape == plan.shape
    assert SpatialPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    back = plan.inverse()
    assert np.allclose(back.matrix @ plan.matrix, np.eye(4), atol=1e-9)
    assert np.allclose(back.affine, grid.affine, atol=1e-6)


@given(
    ops=st.lists(
        st.builds(Flip, st.sampled_from([(0,), (1, 2)])) | st.builds(Rotate90, st.integers(0, 3)),
        max_size=5,
    ),
    grid=grids(),
)
def test_inverse_of_a_lattice_chain_is_exact(ops: Any, grid: Grid) -> None:
    """Forth and back, every voxel is where it was."""
    volume = volume_on(grid, "int16")
    plan = composed(ops, grid)

    there = realized(volume, plan, Policy(), np.int16)
    back = realized(there, plan.inverse(), Policy(), np.int16)

    assert np.array_equal(back, volume)


@given(
    ops=st.lists(moving_ops, min_size=1, max_size=3),
    grid=grids(),
    start=st.tuples(*[st.integers(0, 5)] * 3),
    size=st.tuples(*[st.integers(1, 5)] * 3),
)
@settings(max_examples=60)
def test_a_soft_crop_commutes_with_cropping_the_result(
    ops: Any, grid: Grid, start: Any, size: Any
) -> None:
    """A patch of the transformed volume is that part of the whole transformed volume."""
    plan = composed(ops, grid)
    volume = volume_on(grid, "float64")
    start = [min(a, n - 1) for a, n in zip(start, plan.shape, strict=True)]
    size = [min(s, n - a) for s, n, a in zip(size, plan.shape, start, strict=True)]
    policy = Policy("linear", "reflection")

    cut = plan.crop(start, size)
    patch = realized(volume, cut, policy, np.float64)

    whole = realized(volume, plan, policy, np.float64)
    box = tuple(slice(a, a + s) for a, s in zip(start, size, strict=True))
    # A part that is so small that it stays within the tolerance of a copy is one; the whole is not.
    limit = 3 * COPY_TOLERANCE * RANGE if cut.is_copy else TOLERANCE
    assert np.allclose(patch, whole[(slice(None), *box)], rtol=0, atol=limit)


@given(shape=shapes, size=shapes, seed=st.integers(0, 2**32))
def test_uniform_patches_fit_or_are_centred(shape: Any, size: Any, seed: int) -> None:
    """A start lies in 0 .. shape - size, or the patch hangs over evenly."""
    plan = SpatialPlan.identity(Grid(shape, np.eye(4)))

    drawn = UniformPatch(size).draw(np.random.default_rng(seed), plan)

    for a, s, n in zip(drawn["start"], size, shape, strict=True):
        assert 0 <= a <= n - s if s <= n else a == -((s - n) // 2)


@given(
    grid=grids(),
    dtype=st.sampled_from(["int16", "uint8"]),
    slope=st.floats(-3, 3),
    intercept=st.floats(-1000, 1000),
    padding=st.sampled_from(PADDINGS),
)
@settings(max_examples=60)
def test_scaling_is_in_the_value_space(
    grid: Grid, dtype: str, slope: float, intercept: float, padding: str
) -> None:
    """Resampling stored numbers and scaling gives what resampling scaled values gives."""
    plan = composed([Affine(np.diag([1.2, 0.9, 1.1, 1.0])), Crop((0, 0, 0), (1, 1, 1))], grid)
    plan = plan.crop((-2, -1, 0), (6, 5, 4))
    stored = volume_on(grid, dtype)
    policy = Policy("linear", padding, fill=FILL)
    out = np.empty((2, *plan.shape), np.float32)

    source = Source(stored, (0, 0, 0), Region.of_shape(grid.shape), slope, intercept)
    resample(source, plan.matrix, policy, out)

    expected = sample_plan(stored * slope + intercept, plan, policy)
    sure = far_from_ties(plan)
    # Float32 holds 1000 to 6e-5, which scaling by 3 and shifting by 1000 may double.
    assert np.allclose(out[:, sure], expected[:, sure], rtol=1e-6, atol=TOLERANCE)
