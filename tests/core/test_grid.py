import numpy as np
import pytest

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
