"""Boxes through plans: exact for matrices, holding everything where something is displaced."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_every_chain import Made, chains

from voxpipe.core import Grid
from voxpipe.spatial import Elastic, Flip, Rotate, Rotate90, SpatialPlan

# Random amounts on volumes of a few voxels.
pytestmark = pytest.mark.filterwarnings("ignore:length-beyond-volume")

corners = st.lists(st.floats(-3, 12), min_size=6, max_size=6)
boxes = st.lists(corners, max_size=3).map(
    lambda found: np.sort(np.reshape(found, (-1, 2, 3)), axis=1).reshape(-1, 6)
)
GRID = Grid((10, 8, 6), np.eye(4))


def inside(box: Any) -> Any:
    """Points all over a box, its corners among them."""
    axes = [np.linspace(box[n], box[n + 3], 4) for n in range(3)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)


@given(made=chains(), boxes=boxes)
def test_a_box_holds_where_its_points_come_from(made: Made, boxes: Any) -> None:
    """For chains of all ops; and touches the outermost ones, where nothing is displaced."""
    plan = made.plan

    found = plan.boxes_to_source(boxes)

    assert found.shape == boxes.shape
    for box, source in zip(boxes, found, strict=True):
        points = plan.points_to_source(inside(box))
        assert (points >= source[:3] - 1e-6).all()
        assert (points <= source[3:] + 1e-6).all()
        if not plan.is_displaced:
            assert np.allclose(points.min(axis=0), source[:3])
            assert np.allclose(points.max(axis=0), source[3:])


@given(made=chains(), boxes=boxes)
def test_a_box_holds_where_its_points_go(made: Made, boxes: Any) -> None:
    """The other way round."""
    plan = made.plan

    found = plan.boxes_to_output(boxes)

    for box, output in zip(boxes, found, strict=True):
        points = plan.points_to_output(inside(box))
        # Points come back from a displacement by iteration, to 1e-7 of a source voxel.
        slack = 1e-5 * max(1.0, np.abs(plan.to_output[:3, :3]).max())
        assert (points >= output[:3] - slack).all()
        assert (points <= output[3:] + slack).all()
        if not plan.is_displaced:
            assert np.allclose(points.min(axis=0), output[:3], atol=1e-6)
            assert np.allclose(points.max(axis=0), output[3:], atol=1e-6)


def test_whole_voxels_keep_their_box() -> None:
    """A lesion's voxels, turned and mirrored, are the voxels in the box that comes out."""
    volume = np.zeros(GRID.shape)
    volume[2:5, 1:4, 3:5] = 1
    plan = SpatialPlan.identity(GRID)
    for op in (Flip(0), Rotate90(1, (0, 2))):
        plan = op.then(plan, op.draw(np.random.default_rng(0), plan))  # type: ignore[arg-type]

    (box,) = plan.boxes_to_output([[1.5, 0.5, 2.5, 4.5, 3.5, 4.5]])

    at = np.argwhere(np.rot90(volume[::-1], 1, (0, 2)))
    assert box.tolist() == [*(at.min(axis=0) - 0.5), *(at.max(axis=0) + 0.5)]


def test_a_displacement_widens_a_box_by_what_is_near_only() -> None:
    """Not by the strongest control point of the whole field."""
    grid = Grid((200, 20, 20), np.eye(4))
    control = np.zeros((3, 21, 3, 3))
    control[0, 18:] = 6.0
    plan = SpatialPlan.identity(grid).displace(control, np.diag([0.1, 0.1, 0.1, 1]))
    box = [[10, 5, 5, 20, 9, 9]]

    assert plan.boxes_to_output(box).tolist() == box
    assert plan.boxes_to_source(box).tolist() == box


def test_nothing_is_lost_by_going_there_and_back() -> None:
    """Each way widens, neither cuts."""
    plan = Rotate(20).then(SpatialPlan.identity(GRID), {"degrees": [20, 10, 5]})
    plan = Elastic(1, 4).then(plan, {"amount": [1, 1, 1], "key": 7})
    box = np.array([[2.0, 2, 1, 6, 5, 4]])

    again = plan.boxes_to_source(plan.boxes_to_output(box))

    assert (again[:, :3] <= box[:, :3]).all()
    assert (again[:, 3:] >= box[:, 3:]).all()


@pytest.mark.parametrize(
    ("boxes", "message"),
    [
        ([[0, 0, 0, 1, 1]], r"shape \(N, 6\).*got shape \(1, 5\)"),
        ([0, 0, 0, 1, 1, 1], r"got shape \(6,\)"),
        ([[0, 0, np.nan, 1, 1, 1]], "finite numbers"),
        ([[0, 2, 0, 1, 1, 1]], r"lowest corner, got \[0.0, 2.0, 0.0, 1.0, 1.0, 1.0\]"),
    ],
)
def test_what_is_no_box_is_refused(boxes: Any, message: str) -> None:
    """With the shape that it should have."""
    with pytest.raises(ValueError, match=message):
        SpatialPlan.identity(GRID).boxes_to_source(boxes)
