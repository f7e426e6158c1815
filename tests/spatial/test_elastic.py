"""Elastic deformation: bounded, without folds, the same for a patch and for the whole."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from voxpipe.core import Grid, Stream
from voxpipe.core.errors import PatchSizeError
from voxpipe.spatial import Elastic, Rotate, SpatialPlan
from voxpipe.testing import SpatialOpContract

OBLIQUE = SpatialOpContract.GRID


class TestElastic(SpatialOpContract):
    """The contract, with points every three voxels or so."""

    def make(self) -> Elastic:
        """Up to a millimetre, every four."""
        return Elastic((0.5, 1.0), spacing=4)

    def make_nothing(self) -> Elastic:
        """No distance."""
        return Elastic(0, spacing=4)


def deformed(op: Elastic, plan: SpatialPlan, item: int = 0) -> SpatialPlan:
    """The plan after one draw."""
    drawn = op.draw(Stream(5, 0, (item,), "elastic").generator(), plan)
    assert drawn is not None
    return op.then(plan, drawn)


def moved(plan: SpatialPlan) -> NDArray[np.float64]:
    """Where each voxel comes from, minus where it is: (3, I, J, K)."""
    index = np.indices(plan.shape)
    return plan.points_to_source(index.reshape(3, -1).T).T.reshape(index.shape) - index


@given(st.floats(1, 4), st.integers(0, 999))
def test_it_is_bounded_and_does_not_fold(amount: float, item: int) -> None:
    """No voxel moves further than it may, and the volume of no cell turns inside out."""
    shape = (20, 18, 16)
    op = Elastic(amount, spacing=amount * 2.48, space="voxel")

    far = moved(deformed(op, SpatialPlan.identity(Grid(shape, np.eye(4))), item))

    assert np.abs(far).max() <= amount + 1e-9
    where = far + np.indices(shape)
    corner = where[:, :-1, :-1, :-1]
    sides = (where[:, 1:, :-1, :-1], where[:, :-1, 1:, :-1], where[:, :-1, :-1, 1:])
    edges = np.stack([side - corner for side in sides], axis=-1)
    assert np.linalg.det(np.moveaxis(edges, 0, -2)).min() > 0


def test_millimetres_are_those_of_the_grid() -> None:
    """Along an axis of long voxels a millimetre is less of a voxel, and points lie closer."""
    grid = Grid((32, 32, 8), np.diag([1.0, 1.0, 4.0, 1.0]))
    plan = deformed(Elastic(4, spacing=10), SpatialPlan.identity(grid))

    where = moved(plan)

    assert 1 < np.abs(where[0]).max() <= 4
    assert 0.25 < np.abs(where[2]).max() <= 1


def test_locked_layers_keep_the_faces_in_place() -> None:
    """Two layers: what lies on the faces does not move, and the middle does."""
    shape = (33, 33, 33)
    op = Elastic(3, spacing=8, locked_layers=2, space="voxel")

    plan = deformed(op, SpatialPlan.identity(Grid(shape, np.eye(4))))

    far = np.abs(moved(plan)).max(axis=0)
    assert far[0].max() == far[:, -1].max() == far[:, :, 0].max() == 0
    assert far[16, 16, 16] > 0.1


def test_flat_data_stay_in_their_plane() -> None:
    """K = 1: nothing moves along k, and along i and j something does."""
    grid = Grid((16, 16, 1), np.eye(4))

    plan = deformed(Elastic(2, spacing=6), SpatialPlan.identity(grid))

    far = moved(plan)
    assert np.abs(far[2]).max() == 0
    assert np.abs(far[0]).max() > 0.1
    assert plan.source_region().shape[2] == 1


def test_a_patch_reads_no_more_than_its_surroundings() -> None:
    """Of a large deformed volume: the patch, the amount, and one tap around."""
    grid = Grid((200, 200, 200), np.eye(4))

    plan = deformed(Elastic(3, spacing=20), SpatialPlan.identity(grid)).crop(
        (90, 90, 90), (16,) * 3
    )

    assert max(plan.source_region().shape) <= 16 + 2 * (3 + 1)


def test_one_kernel_call_does_it_all() -> None:
    """Turned, deformed, turned: one interpolation by the kernel, nothing left for the slow path."""
    plan = Rotate(10).then(SpatialPlan.identity(OBLIQUE), {"degrees": [10, 0, 0]})
    plan = deformed(Elastic(1, spacing=4), plan)
    plan = Rotate(10).then(plan, {"degrees": [0, 10, 0]})

    assert plan.kernel_stages.displacement is not None
    assert plan.kernel_stages.earlier == ()


def test_too_many_points_are_refused() -> None:
    """A field of a gigabyte is nobody's wish."""
    grid = Grid((4000, 100, 100), np.eye(4))

    with pytest.raises(PatchSizeError, match=r"401x11x11 control points .* 128 per axis"):
        deformed(Elastic(2, spacing=10), SpatialPlan.identity(grid))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"amount": 5, "spacing": 10},
            r"can fold; .* 0.403 of that: amount < 4.03",
        ),
        ({"amount": (0, 20)}, r"spacing > 49.6"),
        ({"amount": (1, (0, 5), 1), "spacing": (8, 9, 8)}, r"axis 1"),
        ({"amount": -1}, r"distance of at least 0, got -1"),
        ({"amount": (-20, 0.1)}, r"distance of at least 0, got \(-20.0, 0.1\)"),
        ({"amount": float("nan")}, r"finite numbers"),
        ({"amount": 1, "spacing": 0}, r"numbers above 0"),
        ({"amount": 1, "spacing": (2, 4)}, r"spacing is a number above 0 or three"),
        ({"amount": 1, "locked_layers": -1}, r"at least 0"),
        ({"amount": 1, "space": "mm"}, r"one of 'world', 'voxel'"),
        ({"amount": 1, "p": 2}, r"probability"),
    ],
)
def test_nonsense_is_refused_at_construction(arguments: Any, message: str) -> None:
    """With what is allowed."""
    with pytest.raises(ValueError, match=message):
        Elastic(**arguments)
