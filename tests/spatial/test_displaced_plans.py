"""Plans with displacements: what is read, what comes out, what comes before and after."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from voxpipe.core import Grid, Region
from voxpipe.spatial import LABEL, Flip, Policy, Rotate, SourceVoxels, SpatialPlan, Zoom, resample
from voxpipe.spatial.plans.stages import Displacement
from voxpipe.testing.spatial_oracle import sample_plan

SHAPE = (14, 12, 10)
AFFINE = np.array([[-0.8, 0.1, 0, 5], [0, 1.1, 0.2, -3], [0.05, 0, 2.0, 1], [0, 0, 0, 1.0]])
POLICIES = [
    Policy("linear", "border"),
    Policy("linear", "reflection"),
    Policy("linear", "constant", -3),
    Policy("linear", "zeros", 5),
    LABEL,
]


def field(seed: int, strength: float = 1.0, points: int = 4) -> NDArray[np.float64]:
    """Control points of a random displacement."""
    return np.random.default_rng(seed).uniform(-strength, strength, (3, points, points, points))


def over(plan: SpatialPlan, points: int = 4) -> NDArray[np.float64]:
    """The matrix that spreads so many control points over the present output."""
    return np.diag([*((points - 1) / max(n - 1, 1) for n in plan.shape), 1.0])


def bent(plan: SpatialPlan, seed: int, strength: float = 1.0) -> SpatialPlan:
    """The plan followed by a random displacement."""
    return plan.displace(field(seed, strength), over(plan))


def turned(plan: SpatialPlan, degrees: float) -> SpatialPlan:
    """The plan followed by a rotation about all axes."""
    return Rotate(degrees).then(plan, {"degrees": [degrees, degrees / 2, -degrees]})


STEPS = {
    "bend": lambda plan, n: bent(plan, n),
    "turn": lambda plan, n: turned(plan, 3 + 5 * n),
    "zoom": lambda plan, n: Zoom(1.1).then(plan, {"factor": [1.1, 0.9, 1 + n / 20]}),
    "flip": lambda plan, n: Flip(n % 3).then(plan, {"axes": [n % 3]}),
    "crop": lambda plan, n: plan.crop((1, n % 3, 0), (8, 7, 6)),
    "hard": lambda plan, n: plan.crop((1, 1, n % 2), (9, 7, 8), hard=True),
}


@st.composite
def plans(draw: st.DrawFn) -> SpatialPlan:
    """A chain with at least one displacement somewhere in it."""
    names = draw(st.lists(st.sampled_from(sorted(STEPS)), max_size=4))
    names.insert(draw(st.integers(0, len(names))), "bend")
    plan = SpatialPlan.identity(Grid(SHAPE, AFFINE))
    for number, name in enumerate(names):
        plan = STEPS[name](plan, number)
    return plan


def volume() -> NDArray[np.float32]:
    """A volume whose neighbours differ."""
    return np.random.default_rng(3).normal(0, 1, (1, *SHAPE)).astype(np.float32)


def sampled(plan: SpatialPlan, voxels: NDArray[np.float32], policy: Policy) -> NDArray[np.float32]:
    """What the resampler makes of only the voxels that the plan says it needs."""
    out = np.full((1, *plan.shape), 99, np.float32)
    region = plan.source_region(policy)
    kept = (slice(None), *region.slices)
    poisoned = np.full_like(voxels, np.nan)
    poisoned[kept] = voxels[kept]
    # A view: who reads beyond the region reads the poison around it.
    resample(
        SourceVoxels(poisoned[kept], region.start, plan.bounds),
        plan.matrix,
        policy,
        out,
        plan.kernel_stages,
    )
    return out


@given(plans(), st.sampled_from(POLICIES))
def test_any_chain_equals_the_oracle(plan: SpatialPlan, policy: Policy) -> None:
    """Displacements that no op makes, several of them, with turns, flips and crops in any order.

    They may fold, and their last points are no copies of those before. What lies outside of the
    region that is read may be anything.
    """
    voxels = volume()

    found = sampled(plan, voxels, policy)

    expected = sample_plan(voxels, plan, policy)
    assert not np.isnan(found).any()
    off = np.abs(found - expected) > 2e-5
    assert not (off & ~_undecided(plan)).any()


def _undecided(plan: SpatialPlan) -> NDArray[np.bool_]:
    """Which voxels lie so close to a threshold that rounding decides.

    Within 1e-5 of half a voxel from a face, or half way between two, either may be taken.
    """
    index = np.stack(np.meshgrid(*map(np.arange, plan.shape), indexing="ij"), axis=-1)
    places = plan.points_to_source(index.reshape(-1, 3).astype(float))
    unsure = (np.abs(places - np.floor(places) - 0.5) < 1e-5).any(axis=1)
    for clip in plan.kernel_stages.clips:
        at = index.reshape(-1, 3) @ clip.matrix[:3, :3].T + clip.matrix[:3, 3]
        unsure |= (np.abs(at - np.floor(at) - 0.5) < 1e-5).any(axis=1)
    return unsure.reshape(1, *plan.shape)


def test_a_patch_reads_by_the_points_that_it_reaches() -> None:
    """A strong displacement elsewhere does not widen what a patch reads."""
    plan = SpatialPlan.identity(Grid((100, 20, 20), np.eye(4)))
    points = np.zeros((3, 11, 3, 3))
    points[0, 10] = 8.0

    far = plan.displace(points, np.diag([0.1, 0.1, 0.1, 1])).crop((10, 5, 5), (8, 8, 8))

    assert far.source_region(LABEL) == Region((10, 5, 5), (18, 13, 13))


@given(plans(), st.integers(0, 99))
def test_points_go_there_and_back(plan: SpatialPlan, seed: int) -> None:
    """To the source and to the output again, displacements included."""
    points = np.random.default_rng(seed).uniform(0, 8, (5, 3))

    assert np.allclose(plan.points_to_output(plan.points_to_source(points)), points, atol=1e-4)


def test_an_inverse_brings_a_smooth_volume_back() -> None:
    """Two resamplings of a smooth volume leave an error of a hundredth of its range inside."""
    plan = turned(SpatialPlan.identity(Grid((24, 24, 24), np.eye(4))), 20)
    # The outermost points twice, so that the field is smooth at their faces too.
    points = np.pad(field(1), ((0, 0), (1, 1), (1, 1), (1, 1)), mode="edge")
    ringed = over(plan)
    ringed[:3, 3] += 1
    plan = turned(plan.displace(points, ringed), 10).displace(points[:, ::-1], ringed)
    i, j, k = np.indices((24, 24, 24))
    smooth = (np.sin(i / 6) + np.cos(j / 7) * np.sin(k / 8))[None].astype(np.float32)
    back = plan.inverse()

    there = _resampled(plan, smooth, Policy())
    again = _resampled(back, there, Policy("linear", "constant", np.nan))

    assert (back.shape, back.kernel_stages.earlier) == ((24, 24, 24), ())
    known = ~np.isnan(again)
    inside = np.zeros_like(known)
    inside[:, 6:-6, 6:-6, 6:-6] = True
    assert known[inside].all()
    assert np.abs(again - smooth)[inside].max() < 0.01 * np.ptp(smooth)


def _resampled(
    plan: SpatialPlan, voxels: NDArray[np.float32], policy: Policy
) -> NDArray[np.float32]:
    out = np.empty((1, *plan.shape), np.float32)
    resample(
        SourceVoxels(voxels, (0, 0, 0), plan.bounds), plan.matrix, policy, out, plan.kernel_stages
    )
    return out


def test_an_inverse_leaves_fill_where_a_hard_crop_cut() -> None:
    """What was outside the bounds did not come from the volume."""
    plan = SpatialPlan.identity(Grid((6, 1, 1), np.eye(4)))
    cut = plan.crop((2, 0, 0), (3, 1, 1), hard=True).crop((-2, 0, 0), (6, 1, 1))
    voxels = np.arange(6, dtype=np.float32).reshape(1, 6, 1, 1)

    there = _resampled(cut, voxels, Policy())
    again = _resampled(cut.inverse(), there, Policy("linear", "constant", -1))

    assert there.ravel().tolist() == [2, 2, 2, 3, 4, 4]
    assert again.ravel().tolist() == [-1, -1, 2, 3, 4, -1]


def test_what_folds_has_no_inverse() -> None:
    """It says so, instead of some place."""
    points = np.zeros((3, 4, 1, 1))
    points[0, :, 0, 0] = (0, 12, -12, 0)
    plan = SpatialPlan.identity(Grid((12, 4, 4), np.eye(4)))

    with pytest.raises(ValueError, match="folds"):
        plan.displace(points, np.diag([0.25, 0.25, 0.25, 1])).inverse()


def test_equal_fields_have_one_hash():
    """Zero is zero, whichever sign rounding gave it."""
    one = Displacement(np.zeros((3, 1, 1, 1)), np.eye(4))
    other = Displacement(-np.zeros((3, 1, 1, 1)), np.eye(4) * [[1, -1, -1, -1]] * [[1, -1, -1, -1]])
    assert one == other
    assert hash(one) == hash(other)
