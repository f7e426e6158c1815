"""``dataclasses.replace`` on plans: a copy with other fields."""

from dataclasses import fields, replace

import numpy as np
import pytest

from voxpipe.core import Grid, Region
from voxpipe.spatial import SpatialPlan


def plan():
    return SpatialPlan.identity(Grid((10, 10, 10), np.eye(4))).crop((2, 3, 4), (4, 4, 4), hard=True)


def test_a_copy_without_changes_is_equal():
    """Every field is taken over, bounds and clips included."""
    assert replace(plan()) == plan()


@pytest.mark.parametrize(
    ("name", "value"),
    [("shape", (4, 4, 2)), ("bounds", Region((0, 0, 0), (3, 3, 3))), ("keeps_dtype", False)],
)
def test_one_field_is_changed(name, value):
    """The others stay, and the plan that was given too."""
    before = plan()

    after = replace(before, **{name: value})

    assert getattr(after, name) == value
    others = [f.name for f in fields(before) if f.name != name]
    assert all(getattr(after, other) == getattr(before, other) for other in others)
    assert before == plan()


def test_a_new_matrix_wins_over_the_rows_of_the_old():
    """The matrix is what a plan is written with; its rows are what it keeps."""
    matrix = np.diag([2.0, 1.0, 1.0, 1.0])

    after = replace(plan(), matrix=matrix)

    assert np.array_equal(after.matrix, matrix)
    assert after == replace(plan(), rows=matrix)


def test_a_plan_without_a_matrix_is_refused():
    """It says what a plan is given."""
    with pytest.raises(TypeError, match="a matrix of 4x4 and a shape"):
        SpatialPlan(Grid((4, 4, 4), np.eye(4)))
