"""Chunks beside a turned patch are not read, and nobody misses them."""

import functools

import numpy as np
import pytest
from chunked_files import FORMATS, spoil_all_but, write_chunked
from hypothesis import given, settings
from hypothesis import strategies as st
from native_paths import paths_here

from voxpipe.core import IO_COUNTERS, Grid, OrientedBox, Region
from voxpipe.core.errors import CorruptVolume
from voxpipe.spatial import Displacement, LazyPatch, Policy, SpatialPlan, TransformChain
from voxpipe.spatial.plans.pull_back import source_box
from voxpipe.volumes import Volume, close_volumes
from voxpipe.volumes.chunks.chunked_array import ChunkedArray
from voxpipe.volumes.chunks.native_chunks import NativeGrid

zarr = pytest.importorskip("zarr")

SHAPE = (20, 22, 24)


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """One image of random numbers: as an array, and in small chunks of every format."""
    folder = tmp_path_factory.mktemp("culling")
    array = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    return array, {form: write_chunked(folder / form, array, form, 4) for form in FORMATS}


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


MODES = ["linear", "nearest", "cubic"]
PADDINGS = ["border", "constant", "zeros", "reflection"]


def box_of(plan, policy):
    """The oriented box of the taps of a plan; None where it is no smaller than the region."""
    how = (policy.mode, policy.padding, policy.antialias is not False)
    return source_box(plan.rows, plan.shape, plan.bounds, *how, plan.moves)


def assert_poison_never_shows(array, path, plan, policy, native="", stages=()):
    """Compare a patch of a file, unread voxels poisoned, with that of the array: to the bit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VOXPIPE_NATIVE", native)
        expected = realized(Volume(array), plan, policy, stages)
        # NaN spoils whatever adds it, even by 0; a large number what hides NaN.
        for poison in ("1", "finite"):
            patch.setenv("VOXPIPE_POISON", poison)
            close_volumes()  # a chunk that is kept could hide that it was needed
            found = realized(Volume(path), plan, policy, stages)
            assert found.tobytes() == expected.tobytes(), (native, poison)


@given(plans, st.sampled_from(FORMATS), st.sampled_from(MODES), st.sampled_from(PADDINGS))
def test_poison_never_shows(stored, plan, form, mode, padding):
    """With everything else poisoned, a patch is what it is out of the whole array."""
    array, files = stored
    # Cubic sums run along the axes as they lie in memory.
    array = np.asfortranarray(array) if form == "tif" else array
    assert_poison_never_shows(array, files[form], plan, Policy(mode, padding=padding))


# Shapes and chunks of which the first or the last along an axis are one or two voxels thick.
THIN = [
    ((13, 33, 34), (4, 4, 4)),
    ((10, 12, 13), (3, 1, 4)),
    ((10, 9, 13), (1, 4, 6)),
    ((9, 11, 17), (8, 5, 1)),
    ((33, 18, 34), (16, 16, 16)),
]


@pytest.fixture(scope="module")
def thin(tmp_path_factory):
    """Return a function from numbers of a shape and of a type to an array and its file."""
    folder = tmp_path_factory.mktemp("thin")

    def written(case, dtype):
        shape, chunks = THIN[case]
        voxels = np.random.default_rng(case).normal(60, 25, shape).clip(0, 120).astype(dtype)
        path = folder / f"{case}{dtype}.zarr"
        zarr.create_array(path, data=voxels, chunks=chunks, compressors=None)
        return voxels, path

    return functools.cache(written)


@st.composite
def reads(draw, axes):
    """Draw how a thin patch is sampled that is a little turned, about the middle of a face."""
    shape = [draw(st.sampled_from([1, 6, 12, 24])) for _ in range(3)]
    at = [draw(st.floats(0.0, n - 1.0)) for n in axes]
    thin = draw(st.integers(0, 2))
    shape[thin] = draw(st.integers(1, 3))
    at[thin] = draw(st.sampled_from([0, axes[thin] - 1])) + draw(st.floats(-1.5, 1.5))
    tilt = st.sampled_from([0.0, np.pi / 4]) | st.floats(-0.6, 0.6)
    scale = [draw(st.sampled_from([0.3, 1.0, 1.0, 2.2])) for _ in range(3)]
    plan = turn(draw(tilt), draw(tilt), draw(tilt)) * scale, np.array(at), tuple(shape)
    mode, padding = draw(st.sampled_from(MODES)), draw(st.sampled_from(PADDINGS))
    smooths = mode != "nearest" and draw(st.integers(0, 5)) == 0
    policy = Policy(mode, padding, 3.0 if padding == "constant" else 0.0, antialias=smooths)
    stages = ()
    if draw(st.booleans()):
        sizes = [draw(st.integers(1, 4)) for _ in range(3)]
        rng = np.random.default_rng(draw(st.integers(0, 999)))
        points = rng.normal(0, draw(st.sampled_from([0.1, 2.0])), (3, *sizes))
        to_points = np.diag([*(c / n for c, n in zip(sizes, axes, strict=True)), 1.0])
        stages = (Displacement(points, to_points),)
    return plan, policy, stages


def check_thin(thin, data):
    """Draw one read by one path, and compare."""
    case = data.draw(st.sampled_from(range(len(THIN))))
    dtype = data.draw(st.sampled_from(["f4", "i2", "u1", "f8", "f2", "u2", "i4", "u4", "i1"]))
    plan, policy, stages = data.draw(reads(THIN[case][0]))
    native = data.draw(st.sampled_from(["0", *paths_here()]))
    assert_poison_never_shows(*thin(case, dtype), plan, policy, native, stages)


@pytest.mark.slow
@given(st.data())
def test_thin_chunks_at_a_face_never_show(thin, data):
    """Neither does what a chunk holds that taps of weight 0 would lie in."""
    check_thin(thin, data)


@pytest.mark.slow
@given(st.data())
@settings(max_examples=3000)
def test_thin_chunks_at_a_face_never_show_often(thin, data):
    """The same many times."""
    check_thin(thin, data)


@pytest.mark.parametrize("smooths", [False, True])
@pytest.mark.parametrize(
    ("mode", "padding"),
    [("linear", "border"), ("linear", "constant"), ("linear", "zeros"), ("cubic", "border")],
)
def test_a_turned_slab_at_a_last_chunk_of_one_voxel(thin, mode, padding, smooths):
    """Its rows beyond the face have taps of weight 0 or 1 in the chunk before the last."""
    array, path = thin(0, "f4")
    rng = np.random.default_rng(1)
    for n in range(20):
        at = np.array([rng.choice([0, 12]) + rng.uniform(-1.5, 1.5), 16, 17])
        slab = (turn(*rng.uniform(-0.4, 0.4, 3)) * [2.5 if smooths else 1, 1, 1], at, (2, 24, 24))
        policy = Policy(mode, padding, antialias=smooths)
        assert_poison_never_shows(array, path, slab, policy, "0" if n % 2 else "")


@pytest.mark.parametrize("form", FORMATS)
def test_culled_chunks_are_not_looked_at(tmp_path, monkeypatch, form):
    """A turned patch of 64 cubed, with every chunk that it leaves out overwritten in its file."""
    array = np.random.default_rng(0).normal(size=(96, 88, 104)).astype(np.float32)
    path = write_chunked(tmp_path / "a", array, form, 16)
    decoded = set()
    read = ChunkedArray.read

    def noted(self, region, **more):  # nothing is kept
        decoded.update(map(tuple, self.needed_chunks(region).tolist()))
        return read(self, region, **more)

    monkeypatch.setattr(ChunkedArray, "read", noted)
    monkeypatch.setenv("VOXPIPE_POISON", "1")
    plan = (turn(0.5, 0.5, 0.5), np.array([47.5, 44.0, 52.0]), (64, 64, 64))
    realized(Volume(path), plan, Policy("linear"))
    used = set(decoded)
    spoil_all_but(path, form, used)
    close_volumes()

    found = realized(Volume(path), plan, Policy("linear"))

    assert len(used) < 0.85 * np.prod([-(-n // 16) for n in array.shape])
    np.testing.assert_array_equal(found, realized(Volume(array), plan, Policy("linear")))
    assert np.isfinite(found).all()
    assert is_spoilt(Volume(path), array)


def is_spoilt(volume, array):
    """Whether reading all of a volume is refused, or gives something else than it should."""
    try:
        found = volume.read(Region.of_shape(array.shape)).array[0]
    except CorruptVolume:
        return True
    return not np.array_equal(found, array)


def realized(volume, plan, policy, stages=()):
    """Return a patch of a volume by a plan given as a matrix."""
    pending = TransformChain({"image": volume})
    made = SpatialPlan(volume.grid, matrix_of(plan), plan[2], stages=stages, keeps_dtype=False)
    vars(pending).update(plan=made, draws={}, shared_plan=made)
    return LazyPatch(volume, pending, policy).realize()


@pytest.mark.parametrize("native", ["", "0"])
def test_the_same_question_has_the_same_box_and_chunks(monkeypatch, native):
    """Who looks ahead asks of the next patch what its reader asks later: worked out once each."""
    monkeypatch.setenv("VOXPIPE_NATIVE", native)
    own = ChunkedArray(
        SHAPE, (4, 4, 4), np.dtype(np.int16), 0, source=None, cache=None, token="an array"
    )
    questions = []
    for angle in (0.3, 0.5):
        matrix = matrix_of((turn(angle, 0, 0), np.array([10.0, 11.0, 12.0]), (10, 10, 10)))
        grid, policy = Grid(SHAPE, np.eye(4)), Policy("linear")
        plan = SpatialPlan(grid, matrix, (10, 10, 10))
        box = box_of(plan, policy)
        assert box is box_of(SpatialPlan(grid, matrix.copy(), [10, 10, 10]), policy)
        region = plan.source_region(policy)
        questions.append(Region(region.start, region.stop, box))
    asked = []
    touches, cover = OrientedBox.touches, NativeGrid.cover
    monkeypatch.setattr(
        OrientedBox, "touches", lambda self, *a: asked.append(self) or touches(self, *a)
    )
    monkeypatch.setattr(
        NativeGrid, "cover", lambda self, region: asked.append(region.box) or cover(self, region)
    )

    found = [own.needed_chunks(question) for question in questions]

    assert all(
        own.needed_chunks(asking) is kept for asking, kept in zip(questions, found, strict=True)
    )
    assert asked == [question.box for question in questions]


@pytest.mark.parametrize("form", ["zarr", "shards", "b2nd", "h5"])  # tiles are too large for it
def test_a_turned_patch_reads_fewer_chunks(stored, form):
    """By 45 degrees about two axes, less than two thirds of the chunks of its bounds."""
    _, files = stored
    volume = Volume(files[form])
    matrix = matrix_of((turn(0.785, 0, 0.785), np.array([10.0, 11.0, 12.0]), (10, 10, 10)))
    policy = Policy("linear")
    plan = SpatialPlan(Grid(SHAPE, np.eye(4)), matrix, (10, 10, 10))
    region, box = plan.source_region(policy), box_of(plan, policy)

    before = IO_COUNTERS.snapshot()
    volume.read(region)
    whole = (IO_COUNTERS.snapshot() - before).bytes_read
    before = IO_COUNTERS.snapshot()
    volume.read(Region(region.start, region.stop, box))
    culled = (IO_COUNTERS.snapshot() - before).bytes_read

    assert 0 < culled < whole * 2 / 3


def test_the_box_of_a_straight_plan_is_its_region():
    """Where nothing is turned there is nothing to leave out."""
    grid = Grid(SHAPE, np.eye(4))

    assert box_of(SpatialPlan.identity(grid).crop((1, 2, 3), (4, 4, 4)), Policy()) is None


def test_a_patch_beyond_the_border_reads_the_face():
    """What lies before the first voxel is read there: the chunk at the face is kept."""
    matrix = matrix_of((turn(0, 0, 0.5), np.array([-6.0, 10.0, 10.0]), (4, 4, 4)))
    box = box_of(SpatialPlan(Grid(SHAPE, np.eye(4)), matrix, (4, 4, 4)), Policy("linear"))

    assert isinstance(box, OrientedBox)
    face = np.array([[0, 8, 8]])
    assert box.touches(face, face + 4).tolist() == [True]
