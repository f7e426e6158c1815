"""Grid distortion: where content goes, against straight pieces and MONAI's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checkout import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st

from voxpipe.core import Grid
from voxpipe.core.errors import PatchSizeError
from voxpipe.spatial import (
    GridDistortion,
    SpatialOp,
    SpatialPlan,
    kernel_class,
)
from voxpipe.testing import SpatialOpContract


class TestGridDistortion(SpatialOpContract):
    def make(self) -> SpatialOp:
        return GridDistortion((-0.3, 0.3), cells=(3, 2, 2))

    def make_nothing(self) -> SpatialOp:
        return GridDistortion(0, cells=(3, 2, 2))


class TestGivenFactors(SpatialOpContract):
    def make(self) -> SpatialOp:
        return GridDistortion(factors=((0.8, 1.3), (1.1,), (0.9, 1, 1.2)))

    def make_nothing(self) -> SpatialOp:
        return GridDistortion(factors=((1, 1), (1,), (1, 1, 1)))


def places(plan: SpatialPlan) -> Any:
    """Return where each output voxel comes from, (3, I, J, K)."""
    index = np.indices(plan.shape).reshape(3, -1).T.astype(float)
    return plan.points_to_source(index).T.reshape(3, *plan.shape)


def straight(n: int, factors: Any) -> Any:
    """Return the chain of straight pieces itself, from faces of cells."""
    knots = np.linspace(-0.5, n - 0.5, len(factors) + 1)
    values = -0.5 + np.concatenate([[0], np.cumsum(np.array(factors) * n / len(factors))])
    return np.interp(np.arange(n), knots, values)


FACTORS = st.lists(st.floats(0.2, 2), min_size=1, max_size=5)


@settings(max_examples=30, deadline=None)
@given(each=st.tuples(FACTORS, FACTORS, FACTORS))
def test_pieces_are_straight_but_for_their_corners(each: Any) -> None:
    """Exactly, where no corner is within a quarter of a cell; there by the bound that is stated."""
    shape = (31, 24, 17)
    op = GridDistortion(factors=each)
    plan = SpatialPlan.identity(Grid(shape, np.eye(4)))
    plan = op.then(plan, {"factors": [list(axis) for axis in each]})

    found = places(plan)

    for axis, (n, factors) in enumerate(zip(shape, each, strict=True)):
        along = np.moveaxis(found[axis], axis, 0)
        assert np.ptp(along, axis=(1, 2)).max() < 1e-9  # no axis bends another
        cell = n / len(factors)
        corners = -0.5 + cell * np.arange(1, len(factors))
        error = np.abs(along[:, 0, 0] - straight(n, factors))
        far = (np.abs(np.arange(n)[:, None] - corners) >= cell / 4).all(axis=1)
        assert error[far].max(initial=0) < 1e-9
        assert error.max() <= np.abs(np.diff(factors)).max(initial=0) * cell / 24 + 1e-9
        assert (np.diff(along[:, 0, 0]) > 0).all()  # nothing folds


def test_it_is_monai_s_to_within_a_voxel() -> None:
    """Times the factor, and the corners: MONAI shows the end of a cell twice."""
    shape, factors = (48, 40, 32), ((0.6, 0.7, 1.1), (1.5, 0.7), (0.6, 1.2))
    plan = SpatialPlan.identity(Grid(shape, np.eye(4)))
    found = places(GridDistortion(factors=factors).then(plan, {"factors": factors}))

    with np.load(ROOT / "tests" / "data" / "deciding-monai.npz") as file:
        for axis, n in enumerate(shape):
            expected = file[f"grid_distortion_{axis}"]
            mine = np.clip(np.moveaxis(found[axis], axis, 0)[:, 0, 0], 0, n - 1)
            corner = np.abs(np.diff(factors[axis])).max() * n / len(factors[axis]) / 24
            assert np.abs(mine - expected).max() < max(factors[axis]) + corner
            # Beside it, a volume that is left as it is.
            assert np.abs(np.arange(n) - expected).max() > 3 * max(factors[axis])


def test_the_first_face_stays() -> None:
    """The last one moves by the mean of the factors."""
    plan = SpatialPlan.identity(Grid((20, 20, 20), np.eye(4)))
    factors = [[0.7, 1.0, 0.9], [1.4, 1.2], [1.5]]
    corners = np.array([[-0.5] * 3, [19.5] * 3])

    free = GridDistortion(factors=factors).then(plan, {"factors": factors})

    expected = [-0.5 + 20 * np.mean(axis) for axis in factors]
    assert np.allclose(free.points_to_source(corners), [[-0.5] * 3, expected], atol=1e-9)


def test_it_is_one_displacement_of_the_plan_and_has_an_inverse() -> None:
    """Fused with what comes before and after: one interpolation, by the kernel."""
    op = GridDistortion(0.2, cells=3)
    plan = SpatialPlan.identity(Grid((24, 24, 24), np.eye(4))).crop((2, 2, 2), (20, 20, 20))
    drawn = op.draw(np.random.default_rng(3), plan)
    assert drawn is not None
    plan = op.then(plan, drawn).crop((4, 4, 4), (8, 8, 8))
    inner = np.random.default_rng(0).uniform(1, 6, (50, 3))

    there = plan.points_to_source(inner)

    assert kernel_class(plan) == "displacement"
    assert not plan.kernel_stages.earlier
    assert "1 interpolation" in plan.explain()
    assert np.allclose(plan.points_to_output(there), inner, atol=1e-6)
    back = plan.inverse()
    assert np.allclose(back.points_to_source(there), inner, atol=0.06)


def test_flat_axes_stay() -> None:
    """2-D data have K = 1, and are distorted in their plane."""
    plan = SpatialPlan.identity(Grid((12, 12, 1), np.eye(4)))
    op = GridDistortion(0.3)
    drawn = op.draw(np.random.default_rng(0), plan)
    assert drawn is not None

    found = places(op.then(plan, drawn))

    assert not found[2].any()
    assert np.abs(found[0] - np.arange(12)[:, None, None]).max() > 0.1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GridDistortion(1), "would fold"),
        (lambda: GridDistortion((-1, 0.5)), "would fold"),
        (lambda: GridDistortion((0.2, 0.1)), "low <= high"),
        (lambda: GridDistortion(np.nan), "limit is a pair"),
        (lambda: GridDistortion("a"), "limit is a pair"),
        (lambda: GridDistortion(cells=0), "cells is at least 1"),
        (lambda: GridDistortion(cells=17), "1 to 16 cells"),
        (lambda: GridDistortion(factors=((1, 2), (1,))), "three sequences"),
        (lambda: GridDistortion(factors=((1, 0), (1,), (1,))), "above 0"),
        (lambda: GridDistortion(factors=((1, np.inf), (1,), (1,))), "finite"),
        (lambda: GridDistortion(p=2), "from 0 to 1"),
    ],
    ids=map(str, range(11)),
)
def test_bad_parameters_fail_at_construction(make: Any, words: str) -> None:
    """With the allowed values in the message."""
    with pytest.raises((ValueError, PatchSizeError), match=words):
        make()
