"""The way back of a plan: whole voxels exactly, all others in one interpolation."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from voxpipe.core import Grid
from voxpipe.spatial import (
    LABEL,
    Elastic,
    Flip,
    GridDistortion,
    Policy,
    Rotate,
    Shear,
    SourceVoxels,
    SpatialPlan,
    Translate,
    Zoom,
    apply_plan,
    resample,
)

SHAPE = (28, 26, 24)
# Voxels of different lengths, oblique.
TURN = np.linalg.qr(np.random.default_rng(4).normal(size=(3, 3)))[0]
AFFINE = np.eye(4)
AFFINE[:3, :3] = TURN @ np.diag([1.0, 0.8, 1.25])
MARGIN = 3
INTERIOR_ERROR = 0.005
"""Of the range of the smooth volume below, at most: what docs/pipes.md says."""


def smooth() -> NDArray[np.float32]:
    """Waves of some 40 voxels."""
    i, j, k = np.indices(SHAPE)
    return np.asarray(np.sin(i / 6) + np.cos(j / 7) * np.sin(k / 8), np.float32)[None]


def sampled(plan: SpatialPlan, voxels: NDArray[Any], fill: float) -> NDArray[np.float32]:
    out = np.empty((1, *plan.shape), np.float32)
    policy = Policy("linear", "constant", fill)
    resample(
        SourceVoxels(voxels, (0, 0, 0), plan.bounds), plan.matrix, policy, out, plan.kernel_stages
    )
    return out


def there_and_back(plan: SpatialPlan) -> tuple[float, float]:
    """Return the largest error, as a part of the range, and the part of the volume that is inside.

    Inside is what comes back from places ``MARGIN`` voxels and more from every edge.
    """
    voxels = smooth()
    there = sampled(plan, voxels, np.nan)
    back = plan.inverse()
    again = sampled(back, there, np.nan)
    index = np.indices(SHAPE).reshape(3, -1).T.astype(float)
    places = plan.points_to_output(index)
    limits = np.array(plan.shape) - 1 - MARGIN
    inside = ((places >= MARGIN) & (places <= limits)).all(axis=1)
    inside &= ((index >= MARGIN) & (index <= np.array(SHAPE) - 1 - MARGIN)).all(axis=1)
    inside = inside.reshape(1, *SHAPE)
    assert len(plan.inverse().stages) <= 1
    assert not back.kernel_stages.earlier
    assert np.isfinite(again[inside]).all()
    error = np.abs(again - voxels)[inside].max(initial=0) / np.ptp(voxels)
    return float(error), float(inside.mean())


angles = st.tuples(*[st.floats(-30, 30)] * 3)
ops = st.one_of(
    st.builds(Rotate, angles),
    st.builds(Zoom, st.floats(1, 1.3)),
    st.builds(Translate, st.tuples(*[st.floats(-2, 2)] * 3)),
    st.builds(Shear, st.tuples(*[st.floats(-0.15, 0.15)] * 3)),
    st.builds(Elastic, st.floats(0, 2), st.just(14.0)),
    st.builds(Flip, st.integers(0, 2)),
)


@given(st.lists(ops, min_size=1, max_size=4), st.integers(0, 99))
def test_a_smooth_volume_comes_back(chain: Any, seed: int) -> None:
    """One interpolation back, whatever the length of the chain; half a percent off at most."""
    plan = SpatialPlan.identity(Grid(SHAPE, AFFINE))
    for number, op in enumerate(chain):
        drawn = op.draw(np.random.default_rng(seed + number), plan)
        plan = plan if drawn is None else op.then(plan, drawn)

    error, _ = there_and_back(plan)

    assert error <= INTERIOR_ERROR


def test_the_error_of_a_turn_is_what_the_docs_say() -> None:
    """By 20 degrees about each axis."""
    turn = Rotate(20).then(SpatialPlan.identity(Grid(SHAPE, np.eye(4))), {"degrees": [20, 20, 20]})

    error, share = there_and_back(turn)

    assert share > 0.2
    assert error < 0.0035


@pytest.mark.parametrize("op", [Elastic(2.0, spacing=14.0), GridDistortion((-0.2, 0.2))])
@pytest.mark.parametrize("shape", [(28, 26, 1), (1, 26, 28)])
def test_a_displacement_of_a_plane_has_a_way_back(op: Any, shape: tuple[int, int, int]) -> None:
    """An axis of one voxel has no thickness between centres, and is no fold."""
    plan = SpatialPlan.identity(Grid(shape, np.eye(4)))
    plan = op.then(plan, op.draw(np.random.default_rng(3), plan))

    back = plan.inverse()

    assert back.shape == shape
    index = np.indices(shape).reshape(3, -1).T.astype(float)
    places = plan.points_to_output(index)
    # To a twentieth of a voxel, what inverse() promises of a place.
    inner = (np.minimum(places, np.array(shape) - 1 - places)[:, np.array(shape) > 1] >= 1).all(1)
    assert inner.mean() > 0.5
    assert np.abs(back.points_to_source(index) - places)[inner].max() <= 0.05


def test_a_hard_crop_of_whole_voxels_comes_back_as_a_copy():
    """So that integers that no float holds are what they were."""
    volume = np.arange(6 * 5 * 4, dtype=np.int64).reshape(1, 6, 5, 4) + 2**60
    plan = SpatialPlan.identity(Grid((6, 5, 4), np.eye(4)))
    plan = plan.crop((1, 1, 1), (4, 3, 2), hard=True).crop((-1, -1, -1), (6, 5, 4))
    back = plan.inverse()
    patch = apply_plan(plan, volume, LABEL)

    assert back.is_copy
    found = apply_plan(back, patch, LABEL)
    assert np.array_equal(found[:, 1:5, 1:4, 1:3], volume[:, 1:5, 1:4, 1:3])
    assert (found != 0).sum() == 4 * 3 * 2
    # What was padded into the patch does not come back, whatever it is.
    again = apply_plan(back, np.where(patch == 0, 7, patch), LABEL)
    assert np.array_equal(again, found)


def test_of_a_crop_that_left_nothing_nothing_comes_back():
    """Two hard crops that do not meet: the patch is fill, and so is the way back."""
    plan = SpatialPlan.identity(Grid((3, 2, 2), np.eye(4)))
    plan = plan.crop((0, 0, 0), (2, 2, 2), hard=True).crop((2, 0, 0), (2, 2, 2), hard=True)

    assert plan.bounds.is_empty
    patch = apply_plan(plan, np.ones((1, 3, 2, 2), np.uint8), LABEL)
    assert (apply_plan(plan.inverse(), patch + 5, LABEL) == LABEL.fill).all()
