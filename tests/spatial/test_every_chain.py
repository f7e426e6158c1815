"""Random chains of every spatial op against arithmetic that shares nothing with plans."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest
from chain_oracle import Chain
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from op_oracle import moved_by, written_down
from random_ops import Draw, chained_ops, every_op, grids, lattice_ops

from voxpipe.core import Grid
from voxpipe.core.errors import PatchSizeError
from voxpipe.spatial import Policy, ResampleTo, SourceVoxels, SpatialOp, SpatialPlan, resample
from voxpipe.spatial.ops.choices import SpatialChoice
from voxpipe.spatial.plans.pull_back import COPY_TOLERANCE
from voxpipe.testing.spatial_oracle import Floats, sample_at

# Random amounts on volumes of a few voxels.
pytestmark = pytest.mark.filterwarnings("ignore:length-beyond-volume")

RANGE = 200
TOLERANCE = 1e-5 * RANGE
"""The promise: 1e-5 of the range."""
PADDINGS = ("border", "reflection", "constant", "zeros")
MOST_VOXELS = 6000
MOST_OPS = 8
# How near to a threshold rounding may decide, in voxels.
UNSURE = 1e-5


class Made(NamedTuple):
    """A chain in both forms."""

    plan: SpatialPlan
    chain: Chain
    ops: tuple[SpatialOp, ...]


def flatness(shape: tuple[int, ...]) -> int:
    return sum(n == 1 for n in shape)


@st.composite
def chains(draw: Draw, *, lattice: bool = False) -> Made:
    """1 to 8 ops on a grid of their own; one that does not fit is left out."""
    grid = draw(grids())
    makers = lattice_ops() if lattice else every_op()
    plan, chain, ops = SpatialPlan.identity(grid), Chain(grid), []
    for number in range(draw(st.integers(1, MOST_OPS))):
        kind = draw(st.sampled_from(sorted(makers, key=lambda op: op.__name__)))
        op = makers[kind](draw, plan.grid)
        try:
            drawn = op.draw(np.random.default_rng(draw(st.integers(0, 999)) + number), plan)
            after = plan if drawn is None else op.then(plan, drawn)
        except PatchSizeError:
            continue
        # A slice cut out of a volume is turned out of its plane, which no eager library can.
        if math.prod(after.shape) > MOST_VOXELS or flatness(after.shape) != flatness(grid.shape):
            continue
        ops.append(op)
        if drawn is None:
            plan = plan if op.lattice else plan.interpolate()
        else:
            plan = after
            chain.add(op, json.loads(json.dumps(drawn)))
    assume(ops)
    # Between the members of a choice, too.
    assume(all(flatness(step.grid.shape) == flatness(grid.shape) for step in chain.steps))
    return Made(plan, chain, tuple(ops))


def volume_on(grid: Grid, dtype: str, order: str) -> NDArray[Any]:
    rng = np.random.default_rng(0)
    voxels = (rng.random((2, *grid.shape)) * RANGE).astype(dtype)
    return np.asarray(voxels, order=order)  # type: ignore[call-overload]


def realized(
    volume: NDArray[Any], plan: SpatialPlan, policy: Policy, dtype: Any, poison: float
) -> NDArray[Any]:
    """Resample with poison wherever the plan says that it reads nothing."""
    region = plan.source_region(policy)
    assert plan.bounds.contains(region)
    kept = (slice(None), *region.slices)
    poisoned = np.full_like(volume, poison)
    poisoned[kept] = volume[kept]
    out = np.empty((volume.shape[0], *plan.shape), dtype)
    i, j, k = region.start
    # A view: who reads beyond the region reads the poison around it.
    source = SourceVoxels(poisoned[kept], (i, j, k), plan.bounds)
    resample(source, plan.matrix, policy, out, plan.kernel_stages)
    return out


def sure(made: Made, where: Floats) -> NDArray[np.bool_]:
    """Return the output voxels of which no coordinate is so near a threshold that an ulp decides.

    Thresholds lie half way between voxels: where nearest takes the next one, where fill begins,
    and where a hard crop ends, on its own grid.
    """
    distances = [np.abs(where % 1 - 0.5).min(axis=0)]
    place = np.indices(made.chain.grid.shape, dtype=np.float64).reshape(3, -1)
    for step in reversed(made.chain.steps):
        if step.hard:
            distances.append(np.abs(place % 1 - 0.5).min(axis=0))
        place = step.back(place)
    return np.asarray(np.min(distances, axis=0) > UNSURE).reshape(made.plan.shape)


def limit_of(plan: SpatialPlan) -> float:
    """Return how far linear values may be off.

    A copy in the place of an interpolation may be off by its tolerance on each axis, and a
    neighbour by the whole range. One by ops that move whole voxels may not.
    """
    nearly = plan.is_copy and not plan.keeps_dtype
    return 3 * COPY_TOLERANCE * RANGE if nearly else TOLERANCE


def check_values(made: Made, dtype: str, order: str, padding: str) -> None:
    plan, chain = made.plan, made.chain
    where, outside, bounds = chain.places()
    decided = sure(made, where)
    for mode in ("linear", "nearest"):
        kind = "uint8" if mode == "nearest" else dtype
        policy = Policy(mode, padding, fill=255 if mode == "nearest" else -7)
        volume = volume_on(chain.source, kind, order)
        poison = np.nan if kind == "float32" else 254 if kind == "uint8" else 30000
        found = realized(
            volume, plan, policy, np.uint8 if mode == "nearest" else np.float32, poison
        )
        expected = sample_at(volume, where, bounds, policy)
        expected[:, outside] = policy.fill
        expected = expected.reshape(found.shape)
        if mode == "nearest":
            assert np.array_equal(found[:, decided], expected[:, decided])
            # "zeros" brings a zero of its own.
            closed = {*np.unique(volume).tolist(), 255, *([0] if padding == "zeros" else [])}
            assert set(np.unique(found).tolist()) <= closed
        else:
            limit = limit_of(plan)
            off = np.abs(found - expected)
            certain = decided if padding == "constant" or outside.any() else ...
            assert off[:, certain].max(initial=0) <= limit


ARGUMENTS = {
    "made": chains(),
    "dtype": st.sampled_from(["int16", "float32", ">i2", "uint8"]),
    "order": st.sampled_from("CF"),
    "padding": st.sampled_from(PADDINGS),
}


SAMPLING = {
    "mode": st.sampled_from(["linear", "nearest"]),
    "padding": st.sampled_from(PADDINGS),
}


@given(**ARGUMENTS)
def test_some_chains_are_the_oracle_s(made: Made, dtype: str, order: str, padding: str) -> None:
    """Intensities to 1e-5 of the range, labels exactly and closed, from the source region alone."""
    check_values(made, dtype, order, padding)


@pytest.mark.slow
@given(**ARGUMENTS)
@settings(max_examples=500)
def test_500_chains_are_the_oracle_s(made: Made, dtype: str, order: str, padding: str) -> None:
    """The same for as many as were promised."""
    check_values(made, dtype, order, padding)


@given(made=chains())
def test_the_geometry_is_that_of_the_eager_chain(made: Made) -> None:
    """Shape and affine, as if every op had stored a volume; a plan is plain data and comes back."""
    plan, eager = made.plan, made.chain.grid

    assert plan.shape == eager.shape
    assert np.allclose(plan.affine, eager.affine, rtol=1e-9, atol=1e-6)
    assert np.allclose(plan.affine, plan.source.affine @ plan.matrix)
    assert SpatialPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan
    assert pickle.loads(pickle.dumps(plan)) == plan
    if not plan.is_displaced:
        back = plan.inverse()
        assert np.allclose(back.matrix @ plan.matrix, np.eye(4), atol=1e-9)
        assert np.allclose(back.affine, plan.source.affine, atol=1e-6)
    told = plan.explain(dtype="int16")
    assert "\n" not in told
    assert ("copy of" in told) == (plan.is_copy and not plan.source_region().is_empty)
    assert any(word in told for word in ("no interpolation", "1 interpolation", "all fill"))


@given(
    made=chains(lattice=True),
    order=st.sampled_from("CF"),
    padding=st.sampled_from(PADDINGS),
    dtype=st.sampled_from(["int16", "int32", "uint8", "uint16", ">u2", "float32", "float64"]),
)
def test_integer_chains_are_bit_exact(made: Made, order: str, padding: str, dtype: str) -> None:
    """Whole voxels move in their stored type, numbers that float32 cannot hold among them."""
    plan, chain = made.plan, made.chain
    high = {"int32": 2**24 + 1, "float64": 2**53 - 1, "uint16": 65535, ">u2": 65535}
    volume = (high.get(dtype, RANGE) - volume_on(chain.source, "int64", order)).astype(dtype)
    policy = Policy("linear", padding, fill=3)

    found = realized(volume, plan, policy, volume.dtype.newbyteorder("="), 77)

    expected = chain.sampled(volume, Policy("nearest", padding, fill=3))
    assert plan.is_copy
    assert plan.keeps_dtype
    assert np.array_equal(found, expected)


@given(made=chains(lattice=True), order=st.sampled_from("CF"))
def test_the_inverse_of_an_integer_chain_is_exact(made: Made, order: str) -> None:
    """Every voxel that the chain did not leave out is back where it was, bit for bit."""
    volume = volume_on(made.chain.source, "int16", order)
    plan, back = made.plan, made.plan.inverse()
    there = realized(volume, plan, Policy(), np.int16, 30000)

    again = realized(there, back, Policy("linear", "constant", fill=-999), np.int16, 30000)

    where, _, bounds = made.chain.places()
    kept = np.zeros(plan.source.shape, dtype=bool)
    inside = [(along >= a) & (along < b) for along, (a, b) in zip(where, bounds, strict=True)]
    at = np.rint(where[:, np.all(inside, axis=0)]).astype(int)
    kept[tuple(at)] = True
    assert np.array_equal(again[:, kept], volume[:, kept])
    assert (again[:, ~kept] == -999).all()


@given(made=chains(), part=st.data(), **SAMPLING)
def test_a_patch_is_that_part_of_the_whole(made: Made, part: Any, mode: Any, padding: str) -> None:
    """At the border as inside; a chain, then a crop, reads for itself what the whole reads."""
    plan, kind = made.plan, "uint8" if mode == "nearest" else "float32"
    start = [part.draw(st.integers(0, n - 1)) for n in plan.shape]
    size = [part.draw(st.integers(1, n - a)) for n, a in zip(plan.shape, start, strict=True)]
    volume = volume_on(made.chain.source, kind, "C")
    policy, poison = Policy(mode, padding, fill=255), 254 if mode == "nearest" else np.nan
    cut = plan.crop(start, size)

    patch = realized(volume, cut, policy, kind, poison)

    box = tuple(slice(a, a + s) for a, s in zip(start, size, strict=True))
    whole = realized(volume, plan, policy, kind, poison)[(slice(None), *box)]
    decided = sure(made, made.chain.places()[0])[box]
    off = np.abs(patch.astype(float) - whole)[:, decided]
    # So small a part may stay within the tolerance of a copy, where the whole does not.
    limit = 0 if mode == "nearest" else max(limit_of(plan), limit_of(cut))
    assert off.max(initial=0) <= limit


@given(made=chains(), slope=st.floats(-3, 3), intercept=st.floats(-1000, 1000), **SAMPLING)
def test_scaling_is_in_the_value_space(
    made: Made, slope: float, intercept: float, mode: Any, padding: str
) -> None:
    """Resampling stored numbers and scaling gives what resampling scaled values gives."""
    plan, chain = made.plan, made.chain
    stored = volume_on(chain.source, "int16", "C")
    policy = Policy(mode, padding, fill=-7)
    out = np.empty((2, *plan.shape), np.float32)

    source = SourceVoxels(stored, (0, 0, 0), plan.bounds, slope, intercept)
    resample(source, plan.matrix, policy, out, plan.kernel_stages)

    expected = chain.sampled(stored * slope + intercept, policy)
    decided = sure(made, chain.places()[0])
    # Float32 holds 1000 to 6e-5, which scaling by 3 and shifting by 1000 may double.
    limit = limit_of(plan) * max(1, abs(slope))
    assert np.allclose(out[:, decided], expected[:, decided], rtol=1e-6, atol=limit)


def test_every_op_takes_part() -> None:
    """Ops that have a chained form are drawn, new ones too."""
    assert set(chained_ops()) | {ResampleTo} <= set(every_op())
    assert SpatialChoice in every_op()
    assert len(chained_ops()) >= 18
    assert [] == [op for op in chained_ops() if written_down(op) is None]


def test_an_op_of_ours_is_no_oracle_of_its_own() -> None:
    """Else an op that nobody wrote down would be compared with itself."""

    class Unknown:
        __module__ = "voxpipe.spatial.ops.unknown"

    with pytest.raises(LookupError, match="Unknown is not written down"):
        moved_by(Unknown(), {}, Grid((2, 2, 2), np.eye(4)))  # type: ignore[arg-type]
