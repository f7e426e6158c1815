"""Ops that change the grid: which voxels there are, where they lie, and what 2-D data do."""

from __future__ import annotations

import itertools
from typing import Any

import nibabel
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.core import Grid, Stream
from voxpipe.core.errors import BadHeader, PatchSizeError
from voxpipe.datapipes.iter import from_cases
from voxpipe.spatial import (
    Affine,
    Augment,
    CenterCrop,
    Crop,
    DivisiblePad,
    Flip,
    Orientation,
    Pad,
    RandomCrop,
    ResampleTo,
    Resize,
    Rotate,
    Rotate90,
    Shear,
    Spacing,
    SpatialOp,
    SpatialPlan,
    ToAxes,
    Translate,
    Transpose,
    Zoom,
)
from voxpipe.spatial.ops.axis_op import directions
from voxpipe.spatial.plans.matrices import flat_axes, rotation
from voxpipe.testing import SpatialOpContract
from voxpipe.volumes import Volume

GRID = SpatialOpContract.GRID
WHOLE = GRID.shape
OTHER = Grid((6, 7, 5), GRID.affine @ np.diag([1.2, 0.9, 1.3, 1]))


def applied(op: SpatialOp, plan: SpatialPlan, item: int = 0) -> SpatialPlan:
    drawn = op.draw(Stream(1, 0, (item,), "test").generator(), plan)
    return plan if drawn is None else op.then(plan, drawn)


def of(grid: Grid) -> SpatialPlan:
    return SpatialPlan.identity(grid)


class TestSpacing(SpatialOpContract):
    def make(self) -> SpatialOp:
        return Spacing((0.8, 1.6))

    def make_nothing(self) -> SpatialOp:
        return Spacing((None, None, None))


class TestSpacingBetweenCenters(SpatialOpContract):
    def make(self) -> SpatialOp:
        return Spacing((1.3, None, (1.5, 3)), extent="centers")

    def make_nothing(self) -> SpatialOp:
        return Spacing((None, None, None), extent="centers")


class TestResize(SpatialOpContract):
    def make(self) -> SpatialOp:
        return Resize((6, 11, 5))

    def make_nothing(self) -> SpatialOp:
        return Resize((None, None, None))


class TestResizeLongest(SpatialOpContract):
    def make(self) -> SpatialOp:
        return Resize(13, longest=True, extent="centers")

    def make_nothing(self) -> SpatialOp:
        return Resize(9, longest=True)


class TestResampleTo(SpatialOpContract):
    def make(self) -> SpatialOp:
        return ResampleTo(OTHER)

    def make_nothing(self) -> SpatialOp:
        return ResampleTo(GRID)


class TestZoomedGrid(SpatialOpContract):
    def make(self) -> SpatialOp:
        return Zoom((0.7, 1.4), keep_size=False)

    def make_nothing(self) -> SpatialOp:
        return Zoom(1, keep_size=False)


class TestGrowingRotate(SpatialOpContract):
    def make(self) -> SpatialOp:
        return Rotate((-25, 25), keep_size=False)

    def make_nothing(self) -> SpatialOp:
        return Rotate(0, keep_size=False)


class TestRandomQuarterTurns(SpatialOpContract):
    def make(self) -> SpatialOp:
        return Rotate90((1, 3), (1, 2))

    def make_nothing(self) -> SpatialOp:
        return Rotate90((0, 0), (1, 2))


class TestOneFlip(SpatialOpContract):
    def make(self) -> SpatialOp:
        return Flip(exactly_one=True)

    def make_nothing(self) -> SpatialOp:
        return Flip(exactly_one=True, p=0)


class TestOrientation(SpatialOpContract):
    def make(self) -> SpatialOp:
        return Orientation("PIR")

    def make_nothing(self) -> SpatialOp:
        return Orientation("RAS")


class TestToAxes(SpatialOpContract):
    def make(self) -> SpatialOp:
        return ToAxes("zyx")

    def make_nothing(self) -> SpatialOp:
        return ToAxes("xyz")


class TestTranspose(SpatialOpContract):
    def make(self) -> SpatialOp:
        return Transpose((2, 0, 1))

    def make_nothing(self) -> SpatialOp:
        return Transpose((0, 1, 2))


def test_transpose_is_numpy_s() -> None:
    """Every voxel stays where it is in the world; the array is that of numpy.transpose."""
    affine = np.array([[1, 0.1, 0, 3], [0, 2, 0, 4], [0, 0, 3, 5], [0, 0, 0, 1]])
    array = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    for axes in ((2, 1, 0), (1, 2, 0)):
        pipe = from_cases([{"image": Volume(array, affine=affine)}]).open_volume(labels=())
        image = next(iter(pipe.transpose(axes)))["image"]

        assert np.array_equal(image.realize()[0], array.transpose(axes))
        assert np.allclose(image.affine[:3, :3], affine[:3, list(axes)])
        assert np.allclose(image.affine[:3, 3], affine[:3, 3])


class TestRandomCrop(SpatialOpContract):
    def make(self) -> SpatialOp:
        return RandomCrop((3, 5))

    def make_nothing(self) -> SpatialOp:
        return RandomCrop(scale=1)


class TestRandomScaleCrop(SpatialOpContract):
    def make(self) -> SpatialOp:
        return RandomCrop(scale=((0.4, 0.9), 0.5, (0.6, 1)), center=True, hard=True)

    def make_nothing(self) -> SpatialOp:
        return RandomCrop(scale=1, center=True, hard=True)


class TestCropBySlices(SpatialOpContract):
    def make(self) -> SpatialOp:
        return Crop(slices=(slice(1, -1), slice(None, 5), slice(-4, None)))

    def make_nothing(self) -> SpatialOp:
        return Crop(slices=(slice(None), slice(None), slice(None)))


class TestCenterScaleCrop(SpatialOpContract):
    def make(self) -> SpatialOp:
        return CenterCrop(scale=(0.5, 0.7, 0.9))

    def make_nothing(self) -> SpatialOp:
        return CenterCrop(scale=1)


class TestPadToSize(SpatialOpContract):
    def make(self) -> SpatialOp:
        return Pad(size=(12, 4, 8), sides="end")

    def make_nothing(self) -> SpatialOp:
        return Pad(size=4)


class TestDivisiblePad(SpatialOpContract):
    def make(self) -> SpatialOp:
        return DivisiblePad(4)

    def make_nothing(self) -> SpatialOp:
        return DivisiblePad(1)


SPACINGS = st.tuples(*[st.floats(0.3, 6)] * 3)


@given(SPACINGS, st.sampled_from(["edges", "centers"]))
def test_spacing_is_exact_and_the_extent_is_kept_to_a_voxel(
    wanted: tuple[float, float, float], extent: Any
) -> None:
    """The distance is what was asked for; edges move by half a voxel at most, in pairs."""
    plan = applied(Spacing(wanted, extent=extent), of(GRID))

    assert np.allclose(plan.grid.spacing, wanted, rtol=1e-9)
    for n, old, m, new in zip(WHOLE, GRID.spacing, plan.shape, wanted, strict=True):
        lost = n * old - m * new if extent == "edges" else (n - 1) * old - (m - 1) * new
        assert abs(lost) <= new / 2 + 1e-6 or m == 1
    if extent == "edges":
        assert np.allclose(plan.grid.centre, GRID.centre)
    else:
        assert np.allclose(plan.affine[:3, 3], GRID.affine[:3, 3])


@pytest.mark.parametrize("extent", ["edges", "centers"])
def test_resize_keeps_what_its_extent_says(extent: Any) -> None:
    """The outer faces, or the outer centres, have the places in the world that they had."""
    plan = applied(Resize((6, 11, 5), extent=extent), of(GRID))
    out = 0.5 if extent == "edges" else 0.0

    def corners(grid: Grid) -> Any:
        ends = [(-out, n - 1 + out) for n in grid.shape]
        index = np.array([*itertools.product(*ends)])
        return index @ grid.affine[:3, :3].T + grid.affine[:3, 3]

    assert plan.shape == (6, 11, 5)
    assert np.allclose(corners(plan.grid), corners(GRID))


def test_one_voxel_between_centers_lies_in_the_middle() -> None:
    """There is no distance to scale then."""
    plan = applied(Resize((1, 8, 7), extent="centers"), of(GRID))

    assert plan.matrix[0].tolist() == [1, 0, 0, 4]


def test_resampling_to_a_grid_gives_that_grid() -> None:
    """Shape and affine are those that were asked for, after whatever came before."""
    plan = applied(ResampleTo(OTHER), applied(Rotate(20), of(GRID)))

    assert plan.shape == OTHER.shape
    assert np.allclose(plan.affine, OTHER.affine, atol=1e-12)


@pytest.mark.parametrize(
    ("n", "factor", "m"), [(9, 0.5, 4), (10, 1.1, 11), (7, 1.25, 8), (3, 0.2, 1)]
)
def test_a_zoomed_grid_has_the_whole_voxels_that_fit(n: int, factor: float, m: int) -> None:
    """Rounded down, but for a hair of rounding; at least one; at exactly the zoomed distance."""
    plan = applied(Zoom(factor, keep_size=False), of(Grid((n, n, n), np.diag([1, 1, 2, 1.0]))))

    assert plan.shape == (m, m, m)
    assert np.allclose(plan.grid.spacing, np.array([1, 1, 2]) / factor)


def test_growing_holds_every_corner() -> None:
    """Each voxel of the volume lies in the grown grid, which a turn by 90 degrees swaps."""
    plan = applied(Rotate((20, -30, 40), keep_size=False), of(GRID))
    quarter = applied(Rotate((0, 0, 90), space="voxel", keep_size=False), of(GRID))

    found = plan.points_to_output(np.clip(GRID.corners(), 0, np.array(GRID.shape) - 1))

    assert (found > -0.75).all()
    assert (found < np.array(plan.shape) - 0.25).all()
    assert quarter.shape == (WHOLE[1], WHOLE[0], WHOLE[2])
    assert quarter.is_copy


@given(st.lists(st.floats(-1, 1), min_size=9, max_size=9), st.permutations("xyz"), st.data())
def test_orientation_is_nibabel_s(entries: list[float], order: list[str], data: Any) -> None:
    """For any affine the axes come as nibabel's functions bring them."""
    affine = np.eye(4)
    affine[:3, :3] = np.reshape(entries, (3, 3)) + np.diag([0.1, 0.2, 0.3])
    left, sizes, right = np.linalg.svd(affine[:3, :3])
    turn = np.abs(left @ right)
    gaps = np.diff(np.sort(turn.ravel()))
    if sizes[-1] < 1e-3 or gaps.min() < 1e-6:
        return  # two are as near, so that rounding decides
    letters = {"x": "RL", "y": "AP", "z": "SI"}
    codes = "".join(data.draw(st.sampled_from(letters[axis])) for axis in order)
    grid = Grid((4, 5, 6), affine)

    plan = applied(Orientation(codes), of(grid))

    theirs = nibabel.orientations.io_orientation(affine)
    turned = nibabel.orientations.ornt_transform(theirs, nibabel.orientations.axcodes2ornt(codes))
    expected = affine @ nibabel.orientations.inv_ornt_aff(turned, grid.shape)
    assert np.allclose(plan.affine, expected)
    assert plan.is_copy


def test_axes_that_are_equally_near_get_one_each() -> None:
    """Even then every world axis is taken once."""
    affine = np.eye(4)
    affine[:3, :3] = [[1, -1, 0], [1, 1, 0], [0, 0, 1]]

    assert sorted(axis for axis, _ in directions(affine)) == [0, 1, 2]
    with pytest.raises(BadHeader, match="point nowhere"):
        directions(np.zeros((4, 4)))


def test_ways_to_say_a_crop_are_one_crop() -> None:
    """Start and size, start and end, center and size."""
    one = Crop((2, 1, 3), (4, 5, 2))

    assert Crop((2, 1, 3), end=(6, 6, 5)) == one
    assert Crop(center=(4, 3, 4), size=(4, 5, 2)) == one
    slices = Crop(slices=(slice(2, 6), slice(1, -2), slice(-4, -2)))
    assert applied(slices, of(GRID)) == applied(one, of(GRID))


def test_random_crops_reach_every_size_and_place() -> None:
    """Sizes from low to high, ends included; each fits, wherever it lies."""
    plans = [applied(RandomCrop((7, 9)), of(Grid((9, 9, 9), np.eye(4))), n) for n in range(400)]

    sizes = {size for plan in plans for size in plan.shape}
    starts = {tuple(row) for plan in plans for row in plan.matrix[:3, 3:].T.tolist()}

    assert sizes == {7, 8, 9}
    assert {s for start in starts for s in start} == {0, 1, 2}
    assert all(
        s + n <= 9 for plan in plans for s, n in zip(plan.matrix[:3, 3], plan.shape, strict=True)
    )


def test_scales_give_whole_voxels_rounded_up() -> None:
    """As MONAI: ceil, but a product like 10 * 0.7 that comes out a hair too large is 7."""
    grid = Grid((10, 10, 10), np.eye(4))

    assert applied(CenterCrop(scale=(0.55, 0.7, 1)), of(grid)).shape == (6, 7, 10)
    assert applied(RandomCrop(scale=(0.55, 0.7, 1)), of(grid)).shape == (6, 7, 10)


@pytest.mark.parametrize("scale", [(0.75, 1.0), (0.4, 0.45), ((0.5, 0.9), 0.7, (0.1, 0.3))])
def test_a_scaled_size_is_one_of_those_that_monai_draws(scale: Any) -> None:
    """Each whole number from ceil(low * n) to ceil(high * n), on each axis on its own, as often."""
    monai = pytest.importorskip("monai.transforms")
    shape, count = (4, 9, 20), 2000
    each = scale if len(scale) == 3 else (scale,) * 3
    ends = [e if isinstance(e, tuple) else (e, e) for e in each]
    peer = monai.RandScaleCrop(*map(list, zip(*ends, strict=True)), random_size=True)
    peer.set_random_state(0)
    drawn = []
    for _ in range(count):
        peer.randomize(shape)
        drawn.append(peer._size)
    op, plan = RandomCrop(scale=scale), of(Grid(shape, np.eye(4)))
    generators = [Stream(1, 0, (n,), "test").generator() for n in range(count)]
    found = [op.draw(generator, plan)["size"] for generator in generators]

    for ours, theirs in zip(zip(*found, strict=True), zip(*drawn, strict=True), strict=True):
        sizes, counts = np.unique(ours, return_counts=True)
        assert sizes.tolist() == np.unique(theirs).tolist()
        assert counts.min() > 0.75 * count / len(sizes)


def test_a_random_crop_in_the_middle_draws_its_size_only() -> None:
    """Sizes from low to high; as much is cut off on both sides, the odd voxel at the end."""
    op = RandomCrop((5, 9), center=True)
    plans = [applied(op, of(Grid((9, 10, 9), np.eye(4))), n) for n in range(200)]

    starts = {(9, n): set() for n in range(5, 10)} | {(10, n): set() for n in range(5, 10)}
    for plan in plans:
        for whole, size, start in zip((9, 10, 9), plan.shape, plan.matrix[:3, 3], strict=True):
            starts[whole, size].add(start)

    assert starts == {(whole, size): {(whole - size) // 2} for whole, size in starts}


def test_one_flip_takes_each_axis_alone() -> None:
    """One of the listed axes, each as often, with the probability of flipping at all."""
    op = Flip((0, 2), p=0.5, exactly_one=True)
    drawn = [op.draw(Stream(1, 0, (n,), "test").generator(), of(GRID)) for n in range(800)]

    axes = [d["axes"] for d in drawn if d is not None]

    assert {tuple(a) for a in axes} == {(0,), (2,)}
    assert abs(len(axes) - 400) < 60
    assert abs(axes.count([0]) - len(axes) / 2) < 60


def test_quarter_turns_are_drawn_from_their_range() -> None:
    """Ends included, as MONAI's max_k."""
    op = Rotate90((1, 3))

    found = [op.draw(Stream(1, 0, (n,), "test").generator(), of(GRID)) for n in range(60)]

    assert {drawn["k"] for drawn in found if drawn} == {1, 2, 3}


OBLIQUE = np.eye(4)
OBLIQUE[:3, :3] = np.reshape(rotation((15, 20, 25)), (3, 3)) @ np.diag([0.7, 0.9, 5])
PLANES = [
    pytest.param(Grid((12, 10, 1), np.diag([0.7, 0.9, 5, 1])), id="axial"),
    pytest.param(Grid((12, 10, 1), OBLIQUE), id="oblique"),
    pytest.param(Grid((12, 1, 10), np.diag([0.7, 5, 0.9, 1])), id="coronal"),
]
EVERY_AXIS = [
    Rotate(20),
    Rotate(20, keep_size=False),
    Zoom(0.5),
    Zoom(0.5, keep_size=False),
    Zoom((0.5, 0.6, 0.7), space="voxel"),
    Shear(0.2),
    Translate(3),
    Affine(np.array([[1, 0.1, 0.2, 1], [0, 0.9, 0.1, 2], [0.1, 0, 1, 3], [0, 0, 0, 1]])),
    Augment(rotate=20, zoom=0.8, translate=2, shear=0.1),
    Resize(7),
    Spacing(1.0),
    RandomCrop((3, 5)),
    Pad(3),
    Pad(size=20),
    DivisiblePad(16),
]


@pytest.mark.parametrize("grid", PLANES)
@pytest.mark.parametrize("op", EVERY_AXIS, ids=lambda op: op.describe())
def test_two_dimensions_stay_in_their_plane(op: SpatialOp, grid: Grid) -> None:
    """Nothing is interpolated, moved or added along the axis of one voxel."""
    flat = grid.shape.index(1)

    plan = applied(op, of(grid))

    assert flat_axes(of(grid)) == (flat,)
    assert plan.shape[flat] == 1
    assert np.array_equal(plan.matrix[flat], np.eye(4)[flat])
    assert np.array_equal(plan.matrix[:3, flat], np.eye(3)[flat])
    assert plan != of(grid)


@pytest.mark.parametrize("grid", PLANES)
def test_two_dimensions_turn_by_the_whole_angle(grid: Grid) -> None:
    """About the normal: distances in the plane stay what they are, and 40 degrees are 40."""
    plan = applied(Rotate(40), of(grid))
    flat = grid.shape.index(1)

    step = plan.affine[:3, :3] @ np.linalg.inv(grid.affine[:3, :3])

    assert np.allclose(step @ step.T, np.eye(3), atol=1e-9)
    assert np.trace(step) == pytest.approx(1 + 2 * np.cos(np.radians(40)))
    assert np.allclose(step @ grid.affine[:3, flat], grid.affine[:3, flat])


def test_a_slice_of_a_volume_is_turned_out_of_its_plane() -> None:
    """It is no 2-D image: there are voxels on both sides of it."""
    cut = of(GRID).crop((0, 0, 3), (9, 8, 1))

    assert flat_axes(cut) == ()
    assert applied(Rotate(20), cut).matrix[2, 0] != 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Spacing(0), r"spacing takes numbers above 0, got 0"),
        (lambda: Spacing(float("nan")), r"spacing takes numbers above 0, got nan"),
        (lambda: Spacing((1, -1, 1)), r"above 0, got -1"),
        (lambda: Spacing(1, extent="corners"), r"extent is one of 'edges', 'centers'"),
        (lambda: Resize(0), r"voxels >= 1.*got 0"),
        (lambda: Resize((4, 4)), r"or three, one per axis, got \(4, 4\)"),
        (lambda: Resize((4, 4, 4), longest=True), r"longest axis gets one number"),
        (lambda: Resize(4.5), r"got 4.5"),
        (lambda: ResampleTo(Grid((4, 4, 4), np.zeros((4, 4)))), r"affine with an inverse"),
        (lambda: Orientation("RAX"), r"three letters, one of L and R.*got 'RAX'"),
        (lambda: Orientation("RLA"), r"got 'RLA'"),
        (lambda: Crop((0, 0, 0)), r"start and size, start and end, .*got start"),
        (lambda: Crop((0, 0, 0), (2, 2, 2), end=(2, 2, 2)), r"got end, size, start"),
        (lambda: Crop((3, 0, 0), end=(3, 4, 4)), r"start < end on each axis"),
        (lambda: Crop(center=(1, 4, 4), size=4), r"begins before the grid, at \(-1, 2, 2\)"),
        (lambda: Crop(slices=(slice(0, 4, 2),) * 3), r"three slices of step 1"),
        (lambda: Crop(slices=(slice(0.5, 4),) * 3), r"slices have whole numbers"),
        (lambda: CenterCrop(), r"center_crop takes a size or a scale"),
        (lambda: CenterCrop(scale=1.5), r"above 0 and up to 1.*got 1.5"),
        (lambda: RandomCrop(4, scale=0.5), r"random_crop takes a size or a scale"),
        (lambda: RandomCrop((5, 3)), r"low <= high.*got \(5, 3\)"),
        (lambda: RandomCrop(scale=(0.5, 1.2)), r"up to 1, got \(0.5, 1.2\)"),
        (lambda: Pad(), r"an amount or a size"),
        (lambda: Pad(1, sides="start"), r"sides is one of 'both', 'end', got 'start'"),
        (lambda: DivisiblePad(0), r"k is at least 1"),
        (lambda: Flip(exactly_one=True, p=(0.5, 0.5, 0.5)), r"p is a probability"),
        (lambda: Rotate(5, keep_size="no"), r"keep_size is True or False, got 'no'"),
        (lambda: Rotate90((3, 1)), r"low <= high, got \(3, 1\)"),
    ],
)
def test_nonsense_is_refused_at_construction(make: Any, message: str) -> None:
    """The message shows the offending value and the allowed ones."""
    with pytest.raises(ValueError, match=message):
        make()


def test_a_grid_is_a_grid() -> None:
    """An array is none, and the message says what is."""
    with pytest.raises(TypeError, match=r"Grid\(shape, affine\), or the key of a volume"):
        ResampleTo(np.eye(4))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("op", "message"),
    [
        (Crop(slices=(slice(9, None), slice(None), slice(None))), r"leaves nothing of \(9, 8, 7\)"),
        (RandomCrop(9), r"needs a grid as large, which has \(9, 8, 7\)"),
    ],
)
def test_what_does_not_fit_is_refused(op: SpatialOp, message: str) -> None:
    """Once the grid is known."""
    with pytest.raises(PatchSizeError, match=message):
        applied(op, of(GRID))
