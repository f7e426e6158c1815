import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.core import Grid


def test_centre_is_between_the_corner_voxels():
    """The centre index of an even axis lies between two voxels."""
    affine = np.diag([2.0, 1.0, 1.0, 1.0])
    affine[:3, 3] = (10, 0, 0)

    grid = Grid((4, 3, 1), affine)

    assert grid.centre_index == (1.5, 1.0, 0.0)
    assert grid.centre.tolist() == [13.0, 1.0, 0.0]
    assert grid.spacing == (2.0, 1.0, 1.0)


def test_distance_is_measured_at_the_corners_in_voxels():
    """A spacing that is off by one part in a thousand is a whole voxel off at voxel 1000."""
    a = Grid((1001, 2, 2), np.eye(4))
    b = Grid((1001, 2, 2), np.diag([1.001, 1.0, 1.0, 1.0]))

    assert a.distance_in_voxels(b) == pytest.approx(1.0)
    assert a.distance_in_voxels(Grid((1000, 2, 2), np.eye(4))) == float("inf")


def test_json_and_equality():
    """A grid survives JSON and equals what came out."""
    grid = Grid((4, 5, 6), np.diag([1.0, 2.0, 3.0, 1.0]))

    assert Grid.from_json(grid.to_json()) == grid
    assert hash(Grid.from_json(grid.to_json())) == hash(grid)


def test_the_affine_cannot_be_changed():
    """A grid holds a read-only copy of the affine."""
    affine = np.eye(4)
    grid = Grid((1, 1, 1), affine)
    affine[0, 0] = 5

    assert grid.affine[0, 0] == 1
    with pytest.raises(ValueError, match="read-only"):
        grid.affine[0, 0] = 5


@given(
    st.lists(st.floats(-1, 1), min_size=12, max_size=12),
    st.lists(st.floats(-0.01, 0.01), min_size=12, max_size=12),
    st.tuples(*[st.integers(1, 40)] * 3),
)
def test_the_distance_is_the_largest_over_all_corners(entries, noise, shape):
    """The closed formula gives what mapping the eight corners one by one gives."""
    affine = np.diag([3.0, 3.0, 4.0, 1.0])
    affine[:3] += np.reshape(entries, (3, 4))
    there = affine.copy()
    there[:3] += np.reshape(noise, (3, 4))
    grid = Grid(shape, affine)
    corners = np.c_[np.clip(grid.corners(), 0, np.array(shape) - 1), np.ones(8)]

    slow = np.abs(corners @ there.T @ np.linalg.inv(affine).T - corners)[:, :3].max()

    assert grid.distance_in_voxels(Grid(shape, there)) == pytest.approx(slow, abs=1e-10)
    assert grid.distance_in_voxels(Grid(shape, affine)) == 0


def test_what_is_no_place_is_infinitely_far():
    """An affine without inverse, or with NaN, on either side."""
    grid = Grid((2, 2, 2), np.eye(4))
    flat = Grid((2, 2, 2), np.diag([1.0, 1.0, 0.0, 1.0]))
    unknown = Grid((2, 2, 2), np.diag([1.0, np.nan, 1.0, 1.0]))

    assert flat.is_singular
    assert unknown.is_singular
    assert [g.distance_in_voxels(g) for g in (grid, flat, unknown)] == [0, np.inf, np.inf]
    assert grid.distance_in_voxels(unknown) == np.inf


@pytest.mark.parametrize(
    ("shape", "diagonal", "origin", "covers"),
    [
        ((4, 6, 1), (1, 1, 1), (0, 0, 0), True),
        ((2, 3, 1), (2, 2, 9), (0.5, 0.5, 0), True),  # coarser, and a thicker plane
        ((2, 3, 1), (2, 2, 1), (1.5, 0.5, 0), True),  # within one of its own voxels
        ((4, 6, 1), (-1, 1, 1), (3, 0, 0), True),  # mirrored
        ((4, 6, 1), (-1, 1, 1), (0, 0, 0), False),
        ((4, 6, 1), (500, 500, 1), (0, 0, 0), False),
        ((4, 4, 1), (1, 1, 1), (0, 0, 0), False),
        ((4, 6, 1), (np.nan, 1, 1), (0, 0, 0), False),
        ((4, 6, 1), (np.inf, 1, 1), (0, 0, 0), False),
    ],
)
def test_a_grid_covers_another_within_a_voxel_of_either(shape, diagonal, origin, covers):
    """Planes have any thickness."""
    affine = np.diag([*diagonal, 1.0])
    affine[:3, 3] = origin

    assert Grid(shape, affine).covers(Grid((4, 6, 1), np.eye(4))) == covers
