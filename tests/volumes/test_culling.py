"""Chunks beside a turned patch are not read, and nobody misses them."""

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from voxpipe.core import TALLY, Grid, OrientedBox, Region
from voxpipe.spatial import LazyPatch, PendingPlan, Policy, SpatialPlan
from voxpipe.spatial.pull_back import source_box, source_region
from voxpipe.volumes import Volume, close_volumes
from voxpipe.volumes.chunked_array import POISON_VARIABLE

SHAPE = (20, 22, 24)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """One image of random numbers: as an array, in small chunks, and in shards."""
    folder = tmp_path_factory.mktemp("culling")
    array = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    zarr.create_array(folder / "chunks.zarr", data=array, chunks=(4, 4, 4))
    zarr.create_array(folder / "shards.zarr", data=array, chunks=(4, 4, 4), shards=(8, 8, 8))
    return array, folder


def turn(a, b, c):
    """Return a rotation by three angles in radians."""
    (sa, ca), (sb, cb), (sc, cc) = ((np.sin(v), np.cos(v)) for v in (a, b, c))
    about_i = np.array([[1, 0, 0], [0, ca, -sa], [0, sa, ca]])
    about_j = np.array([[cb, 0, sb], [0, 1, 0], [-sb, 0, cb]])
    about_k = np.array([[cc, -sc, 0], [sc, cc, 0], [0, 0, 1]])
    return about_i @ about_j @ about_k


angles = st.floats(-3.2, 3.2)
plans = st.builds(
    lambda a, b, c, zoom, at, shape: (turn(a, b, c) * zoom, np.array(at), shape),
    angles,
    angles,
    angles,
    st.floats(0.4, 2.5),
    st.tuples(*[st.floats(-4.0, n + 4.0) for n in SHAPE]),
    st.tuples(*[st.integers(1, 9)] * 3),
)


def matrix_of(plan):
    """Return the 4x4 pull-back of an output that is centred on a place."""
    rotation, at, shape = plan
    matrix = np.eye(4)
    matrix[:3, :3] = rotation
    matrix[:3, 3] = at - rotation @ ((np.array(shape) - 1) / 2)
    return matrix


@given(
    plans,
    st.sampled_from(["chunks", "shards"]),
    st.sampled_from(["linear", "nearest", "cubic"]),
    st.sampled_from(["border", "constant", "zeros", "reflection"]),
)
@settings(max_examples=60)
def test_poison_never_shows(stored, plan, layout, mode, padding):
    """With everything else poisoned, a patch is what it is out of the whole array."""
    array, folder = stored
    policy = Policy(mode, padding=padding)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(POISON_VARIABLE, "1")
        close_volumes()  # a chunk that is kept could hide that it was needed
        found = realized(Volume(folder / f"{layout}.zarr"), plan, policy)

    np.testing.assert_array_equal(found, realized(Volume(array), plan, policy))


def realized(volume, plan, policy):
    """Return a patch of a volume by a plan given as a matrix."""
    pending = PendingPlan({"image": volume})
    made = SpatialPlan(volume.grid, matrix_of(plan), plan[2], keeps_dtype=False)
    object.__setattr__(pending, "_resolved", (volume.grid, made, {}))
    return LazyPatch(volume, pending, policy).realize()


def test_a_turned_patch_reads_fewer_chunks(stored):
    """By 45 degrees about two axes, less than two thirds of the chunks of its bounds."""
    _, folder = stored
    volume = Volume(folder / "chunks.zarr")
    matrix = matrix_of((turn(0.785, 0, 0.785), np.array([10.0, 11.0, 12.0]), (10, 10, 10)))
    policy = Policy("linear")
    region = source_region(matrix, (10, 10, 10), Region.of_shape(SHAPE), policy)
    box = source_box(matrix, (10, 10, 10), Region.of_shape(SHAPE), policy)

    before = TALLY.snapshot()
    volume.read(region)
    whole = (TALLY.snapshot() - before).bytes_read
    before = TALLY.snapshot()
    volume.read(region, box)
    culled = (TALLY.snapshot() - before).bytes_read

    assert 0 < culled < whole * 2 / 3


def test_the_box_of_a_straight_plan_is_its_region():
    """Where nothing is turned there is nothing to leave out."""
    grid = Grid(SHAPE, np.eye(4))

    assert SpatialPlan.identity(grid).crop((1, 2, 3), (4, 4, 4)).source_box() is None


def test_a_patch_beyond_the_border_reads_the_face():
    """What lies before the first voxel is read there: the chunk at the face is kept."""
    matrix = matrix_of((turn(0, 0, 0.5), np.array([-6.0, 10.0, 10.0]), (4, 4, 4)))
    box = source_box(matrix, (4, 4, 4), Region.of_shape(SHAPE), Policy("linear"))

    assert isinstance(box, OrientedBox)
    face = np.array([[0, 8, 8]])
    assert box.touches(face, face + 4).tolist() == [True]
