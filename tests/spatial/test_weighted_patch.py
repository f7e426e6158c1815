"""Patches by a map of weights: as often as it says, in tables, plans and chains of plans."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from voxpipe.core import IO_COUNTERS, Grid, Region, Stream
from voxpipe.core.call_site import looking_ahead
from voxpipe.core.errors import PatchSizeError
from voxpipe.spatial import (
    Crop,
    Elastic,
    Flip,
    MaskedRegion,
    Pad,
    Rotate,
    Rotate90,
    Spacing,
    SpatialPlan,
    UniformRegion,
    WeightedPatch,
    Zoom,
    forget_masks,
    weight_table,
)
from voxpipe.spatial.placing import sampling_mask as weight_index
from voxpipe.spatial.placing import weight_table as weight_table_module
from voxpipe.testing import SpatialOpContract
from voxpipe.volumes import Volume

# A draw of so many patches shows a probability to within a few hundredths.
DRAWS = 2000


@pytest.fixture(autouse=True)
def forgotten(tmp_path, monkeypatch):
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "cache"))
    forget_masks()


class TestWeightedPatch(SpatialOpContract):
    """What every op promises."""

    WEIGHTS = Volume(np.ones((9, 8, 7), np.float32), affine=SpatialOpContract.GRID.affine)

    def make(self):
        return WeightedPatch((4, 4, 4), self.WEIGHTS, "likely")

    def make_nothing(self):
        return WeightedPatch((9, 8, 7), self.WEIGHTS, "likely")

    # Weights are looked up where the voxels are stored: another grid there is another draw.
    test_fused_is_one_after_another = None


class TestWeightedRegion(SpatialOpContract):
    """What every op promises."""

    def make(self):
        return MaskedRegion(
            UniformRegion((6, 7, 6), (3, 3, 3), (2, 1, 4)),
            WeightedPatch((3, 3, 3), TestWeightedPatch.WEIGHTS, "likely"),
        )

    def make_nothing(self):
        region = UniformRegion((99, 99, 99), (99, 99, 99), (1, 1, 1))
        return MaskedRegion(region, WeightedPatch((99, 99, 99), TestWeightedPatch.WEIGHTS))

    test_fused_is_one_after_another = None
    # Of a grid that is smaller than the patch.
    pytestmark = pytest.mark.filterwarnings("ignore:a volume is smaller")


def plan_of(shape, *ops):
    plan = SpatialPlan.identity(Grid(shape, np.eye(4)))
    for op in ops:
        plan = op.then(plan, op.draw(np.random.default_rng(0), plan))
    return plan


def starts_of(op, plan, count=DRAWS, region=None):
    """Return where patches start in the grid of the plan, (N, 3)."""
    found = []
    for item in range(count):
        first = np.zeros(3, int)
        part, patch = plan, op
        if region is not None:
            box = region.draw(Stream(0, 0, (item,), "region").generator(), plan)
            first, part = np.array(box["start"]), region.then(plan, box)
            patch = region.patch
        drawn = patch.draw(Stream(0, 0, (item,), "lazy_patch").generator(), part)
        found.append(first + drawn["start"])
    return np.array(found)


def valid_weights(weights, size):
    """Return what a start of a patch weighs: its middle voxel, as in MONAI and TorchIO."""
    places = [n - s + 1 for n, s in zip(weights.shape, size, strict=True)]
    return weights[tuple(slice(s // 2, s // 2 + n) for s, n in zip(size, places, strict=True))]


def refuse_unlike(starts, expected):
    """Assert that starts come up as often as expected, by a chi-square test at 5 sigma."""
    probabilities = expected / expected.sum()
    counts = np.zeros(expected.shape, int)
    np.add.at(counts, tuple(starts.T), 1)
    assert counts[probabilities == 0].sum() == 0
    # Rare ones together: the test wants about five draws of each.
    rare = probabilities * len(starts) < 5
    seen = np.append(counts[~rare], counts[rare].sum())
    wanted = len(starts) * np.append(probabilities[~rare], probabilities[rare].sum())
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    chi2, freedom = (np.square(seen - wanted) / wanted).sum(), len(wanted) - 1
    assert chi2 < freedom + 5 * np.sqrt(2 * freedom) + 10


def smooth(shape, seed=0):
    return np.random.default_rng(seed).random(shape).astype(np.float32) ** 4


WEIGHTS = arrays.arrays(
    np.float32,
    st.tuples(*[st.integers(1, 20)] * 3),
    elements=st.sampled_from([0, 0, 1, 9, 0.1, 1 / 3, 1e-3, 700]),
    fill=st.sampled_from([0, 1, 0.3]),
)


def table_of(weights, most=weight_index.MOST_BYTES):
    return weight_table_module.tabulate(
        weights.shape, [(Region.of_shape(weights.shape), weights)], most
    )


def weights_in(table):
    """Return what a table says of every voxel."""
    found = np.zeros(table.shape)
    voxels, weights = table.every(Region.of_shape(table.shape), 2**30)
    np.add.at(found, tuple(voxels.T), weights)
    return found / max(1e-300, found.sum()) * table.total


@given(weights=WEIGHTS)
def test_a_table_holds_every_weight(weights):
    """To a thousandth of itself, the smallest beside the largest too; 0 stays 0."""
    table = table_of(weights)

    exact = weights.astype(np.float64)

    assert table.is_exact
    assert table.places == table.voxels == np.count_nonzero(weights)
    assert table.total == pytest.approx(exact.sum(), rel=1e-12)
    found = weights_in(table)
    assert ((found > 0) == (weights > 0)).all()
    assert np.allclose(found, exact, rtol=1e-3, atol=0)
    for low, high in (((0, 0, 0), (5, 3, 20)), ((2, 1, 3), (9, 9, 9))):
        part = Region(low, high).intersect(Region.of_shape(weights.shape))
        voxels, _ = table.every(part, 2**30)
        box = tuple(slice(a, b) for a, b in zip(part.start, part.stop, strict=True))
        assert len(voxels) == np.count_nonzero(weights[box])
        assert all(part.contains(Region(tuple(v), tuple(v + 1))) for v in voxels)
        assert table.has_some(part) == bool(len(voxels))


@given(weights=WEIGHTS, first=st.floats(0, 1, exclude_max=True), second=st.sampled_from([0, 1]))
def test_what_is_picked_weighs_something(weights, first, second):
    """Whatever the numbers are, the largest below 1 too."""
    weights[0, 0, 0] = 1
    table = table_of(weights)
    numbers = np.array([[first, np.nextafter(1, 0) * second], [np.nextafter(1, 0), first]])

    for voxel in table.pick(Region.of_shape(weights.shape), numbers):
        assert weights[tuple(voxel)] > 0


@pytest.mark.parametrize(
    ("shape", "size"),
    [((12, 9, 7), (5, 4, 2)), ((20, 17, 1), (6, 5, 1)), ((30, 3, 3), (1, 1, 1))],
)
def test_every_middle_comes_up_as_its_weight_says(shape, size):
    """What MONAI's and TorchIO's cumulative sums of the places that fit give; in 2-D too."""
    weights = smooth(shape)
    op = WeightedPatch(size, Volume(weights))

    refuse_unlike(starts_of(op, plan_of(shape)), valid_weights(weights, size))


def test_blocks_of_one_and_nine_come_up_as_one_and_nine():
    """As a mask they would be alike."""
    weights = np.zeros((64, 16, 16), np.float32)
    weights[8:16, 4:12, 4:12], weights[40:48, 4:12, 4:12] = 1, 9
    op = WeightedPatch((8, 8, 8), Volume(weights))

    share = (starts_of(op, plan_of(weights.shape), 1000)[:, 0] > 24).mean()

    assert abs(share - 0.9) < 5 * np.sqrt(0.9 * 0.1 / 1000)


def test_an_axis_with_one_place_counts_all_its_voxels():
    """TorchIO and MONAI look at the middle plane only; here no slice is left out."""
    weights = smooth((16, 12, 10))
    for third in (10, None):
        op = WeightedPatch((4, 4, third), Volume(weights))

        starts = starts_of(op, plan_of(weights.shape))

        refuse_unlike(starts, valid_weights(weights.sum(axis=2, keepdims=True), (4, 4, 1)))


@pytest.mark.parametrize("align", [(8, 8, 8), (3, 5, 4)])
def test_regions_leave_every_place_as_likely(align):
    """Also where the last region along an axis has one place only."""
    weights, size = smooth((20, 17, 12), 3), (4, 5, 4)
    patch = WeightedPatch(size, Volume(weights), regional=True)
    region = MaskedRegion(UniformRegion((12, 12, 12), size, align), patch)

    starts = starts_of(None, plan_of(weights.shape), region=region)

    refuse_unlike(starts, valid_weights(weights, size))


@pytest.mark.parametrize("low", [(0, 0, 0), (3, 1, 2)])
def test_only_the_present_grid_counts(low):
    """After a crop, a flip and a quarter turn the map has moved with the volume."""
    weights, size = smooth((14, 12, 10), 5), (3, 4, 2)
    ops = (Crop(low, (9, 8, 7)), Flip(0), Rotate90(1, (0, 2)))
    part = weights[tuple(slice(a, a + n) for a, n in zip(low, (9, 8, 7), strict=True))]

    starts = starts_of(WeightedPatch(size, Volume(weights)), plan_of(weights.shape, *ops))

    plan = plan_of(weights.shape, *ops)
    moved = np.zeros(plan.shape)
    for index in np.ndindex(plan.shape):
        at = plan.matrix[:3] @ (*index, 1)
        moved[index] = weights[tuple(np.rint(at).astype(int))]
    assert sorted(moved.ravel()) == pytest.approx(sorted(part.ravel()))
    refuse_unlike(starts, valid_weights(moved, size))


def test_after_a_turn_a_middle_weighs_what_the_map_does_there():
    """On average over its voxel, of the map by nearest neighbour; anisotropic, and zoomed."""
    weights, size = smooth((10, 10, 3), 1), (5, 5, 3)
    plan = SpatialPlan.identity(Grid(weights.shape, np.diag([1, 1, 2.5, 1])))
    for op in (Rotate((0, 0, 30)), Zoom((1.6, 1.3, 1), keep_size=False)):
        plan = op.then(plan, op.draw(np.random.default_rng(0), plan))
    op = WeightedPatch(size, Volume(weights, affine=plan.source.affine))

    starts = starts_of(op, plan)

    # The average over a voxel, from 9 x 9 places in it.
    inside = (np.arange(9) - 4) / 9
    moved = np.zeros(plan.shape)
    for a, b in itertools.product(inside, inside):
        index = np.indices(plan.shape).reshape(3, -1) + np.array([[a], [b], [0]])
        at = np.rint(plan.matrix[:3, :3] @ index + plan.matrix[:3, 3:]).astype(int)
        known = ((at >= 0) & (at < np.array(weights.shape)[:, None])).all(axis=0)
        moved.ravel()[known] += weights[tuple(at[:, known])]
    refuse_unlike(starts, valid_weights(moved.sum(axis=2, keepdims=True), (5, 5, 1)))


@pytest.mark.parametrize(
    "ops",
    [
        (),
        (Flip((0, 1)),),
        (Rotate((20, 10, 30)),),
        (Zoom(1.7), Flip(2)),
        (Spacing((0.6, 0.7, 1.5)),),
        (Crop((20, 0, 0), (20, 16, 14)), Rotate((0, 0, 180))),
        (Pad(5), Rotate((0, 40, 0))),
        (Elastic(1.5, spacing=8),),
    ],
)
@pytest.mark.parametrize("bright", [(30, 9, 6), (23, 3, 11)])
def test_the_one_bright_voxel_is_in_every_patch(ops, bright):
    """Whatever came before, and where a face is too near for a patch about it."""
    weights = np.zeros((40, 16, 14), np.float32)
    weights[bright] = 0.25
    plan = plan_of(weights.shape, *ops)
    op = WeightedPatch((6, 5, 4), Volume(weights))
    # Half of what a voxel of the volume measures in voxels of the grid, bent a little.
    half = np.abs(np.linalg.inv(plan.matrix[:3, :3])).sum(axis=1) / 2 + 0.1

    for item in range(20):
        drawn = op.draw(Stream(0, 0, (item,), "lazy_patch").generator(), plan)
        at = op.then(plan, drawn).points_to_output([bright])[0]
        # The zoom cuts one of the two: its middle is outside of the grid, and the rest is not.
        assert (at + half > -0.5).all()
        assert (at - half < np.array((6, 5, 4)) - 0.5).all()
        for start, n, s in zip(drawn["start"], plan.shape, (6, 5, 4), strict=True):
            assert 0 <= start <= n - s


def test_faces_have_no_part_unless_there_is_nothing_else():
    """Then the patch is moved inward, and holds what is at the face."""
    weights = np.zeros((20, 20, 20), np.float32)
    weights[0, 10, 10], weights[10, 10, 10] = 1000, 1e-3
    op = WeightedPatch((8, 8, 8), Volume(weights))
    assert set(starts_of(op, plan_of(weights.shape), 50)[:, 0]) == {6}

    weights = np.zeros((20, 20, 20), np.float32)
    weights[0, 10, 10] = 1000
    op = WeightedPatch((8, 8, 8), Volume(weights))
    assert starts_of(op, plan_of(weights.shape), 1).tolist() == [[0, 6, 6]]


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("most", [0, 99])
def test_what_hardly_weighs_is_found_among_what_weighs_more(most, turned, monkeypatch):
    """Where all tries miss: by voxels, or where these are too many by the middles of runs."""
    monkeypatch.setattr(weight_table_module, "_MOST_VOXELS", most * 100)
    weights = np.zeros((20, 20, 20), np.float32)
    weights[3, 8:12, 8:12] = 1000  # in the box of middles if that were a voxel wider
    weights[4:8, 8:16, 8:16] = np.float32(1e-3)
    op = WeightedPatch((8, 8, 8), Volume(weights))
    plan = plan_of(weights.shape)
    if turned:  # by so little that it is interpolated, and changes no place
        plan = plan_of(weights.shape, Rotate((0, 0, 0.01)))
        assert not plan.is_copy

    starts = starts_of(op, plan, 400)

    if most:
        expected = valid_weights(weights, (8, 8, 8))
        refuse_unlike(starts, expected)
    assert ((starts >= 0) & (starts <= 12)).all()


@pytest.mark.parametrize("as_mask", [False, True])
def test_what_is_left_out_for_want_of_room_is_told(as_mask):
    """What is kept lies evenly: every part has the weight that it should, and 0 stays 0."""
    weights = smooth((32, 24, 16), 2)
    if as_mask:
        weights = (weights > 0.05).astype(np.float32)
    most = 2000

    table = table_of(weights, most)

    found = weights_in(table)
    assert not table.is_exact
    assert table.nbytes <= most
    assert table.places == np.count_nonzero(found) < table.voxels == np.count_nonzero(weights)
    assert table.places > 600
    assert (weights[found > 0] > 0).all()
    # One run in each part of the same weight, along J and then K.
    upto = [
        np.cumsum(w.sum(axis=(0, 1)) if as_mask else w.sum(axis=(0, 2))) for w in (found, weights)
    ]
    assert np.abs(upto[0] - upto[1]).max() < 0.08 * table.total
    assert np.array_equal(found, weights_in(table_of(weights, most)))


def test_a_class_has_every_voxel_as_likely_over_many_tables():
    """Which voxels are kept is chance, of which none has a better one: over parts of a volume."""
    label = np.random.default_rng(5).random((40, 40, 40)) < 0.3
    table = table_of(label, 2000)

    found = weights_in(table).reshape(8, 5, 8, 5, 8, 5).sum(axis=(1, 3, 5))

    held = label.reshape(8, 5, 8, 5, 8, 5).sum(axis=(1, 3, 5))
    assert 500 < table.places < 0.2 * table.voxels
    assert abs(found[:4].sum() / held[:4].sum() - 1) < 0.02
    assert abs(found[:, :4].sum() / held[:, :4].sum() - 1) < 0.1
    assert abs(found[:, :, :4].sum() / held[:, :, :4].sum() - 1) < 0.1


def test_a_noisy_volume_is_tabulated_in_bounded_memory():
    """Runs are thinned while they come; every one has its chance still."""
    weights = np.random.default_rng(1).random((64, 32, 32)).astype(np.float32)
    collected = weight_table_module.RunCollector(weights.shape, most_held=2000)
    for first in range(0, 64, 4):
        region = Region((first, 0, 0), (first + 4, 32, 32))
        runs, values = weight_table_module.runs_of(weights[first : first + 4], region, (64, 32, 32))
        collected.add(replace(runs, weight=values * runs.length.astype(np.float64)))
        assert collected.count <= 4000 + 4 * 32 * 32

    table = collected.table(2**20)

    assert not table.is_exact
    assert table.voxels == weights.size
    assert table.total == pytest.approx(weights.sum(dtype=np.float64))
    for axis in range(3):
        both = [np.moveaxis(each, axis, 0) for each in (weights_in(table), weights)]
        halves = [each[: len(each) // 2].sum() for each in both]
        assert halves[0] == pytest.approx(halves[1], rel=0.1)


def test_more_than_2_to_the_24_voxels():
    """A cumulative sum in float32 ends there, and torch.multinomial refuses them."""
    weights = np.ones((260, 260, 260), np.float32)
    op = WeightedPatch((1, 1, 1), Volume(weights))
    table = op.table(plan_of(weights.shape))

    starts = starts_of(op, plan_of(weights.shape), 2000)

    assert table.total == weights.size > 2**24
    for axis in range(3):
        thirds = np.bincount(starts[:, axis] // 87, minlength=3)
        assert (np.abs(thirds - 2000 / 3) < 5 * np.sqrt(2000 / 3)).all()


def test_a_map_on_a_grid_of_its_own():
    """Each voxel weighs what the nearest one of the map does, 0 outside of it."""
    coarse = np.zeros((5, 5, 4), np.float32)
    coarse[2, 4, 1], coarse[0, 0, 0] = 3, 1
    affine = np.diag([8.0, 8, 8, 1])
    affine[:3, 3] = 3.5
    grid = Grid((48, 36, 32), np.eye(4))

    table = weight_table(Volume(coarse, affine=affine), grid)

    found = weights_in(table)
    assert found[16:24, 32:36, 8:16].sum() == pytest.approx(768)  # the grid ends in this voxel
    assert found[:8, :8, :8].sum() == pytest.approx(512)
    assert table.total == 768 + 512


@pytest.mark.parametrize("kind", [np.uint8, np.int16, bool, np.float64, ">f4"])
def test_weights_of_any_real_type(kind):
    """Whole numbers and flags weigh what they are."""
    weights = np.zeros((8, 8, 8), kind)
    weights[2, 3, 4] = 1

    table = weight_table(Volume(weights), Grid((8, 8, 8), np.eye(4)))

    assert table.total == 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (-1, r"-1.0 at voxel \(1, 2, 3\).*from 0"),
        (np.nan, r"nan at voxel \(1, 2, 3\)"),
        (np.inf, r"inf at voxel \(1, 2, 3\)"),
    ],
)
def test_what_is_no_weight_is_refused(value, message):
    """With the value and where it is."""
    weights = np.ones((8, 8, 8))
    weights[1, 2, 3] = value

    with pytest.raises(PatchSizeError, match=message):
        weight_table(Volume(weights), Grid((8, 8, 8), np.eye(4)))


def test_weights_that_cannot_be_added_or_told_apart_are_refused():
    """A sum that is no number, several channels, complex numbers."""
    grid = Grid((8, 8, 8), np.eye(4))
    with pytest.raises(PatchSizeError, match="add up to more than a number holds"):
        weight_table(Volume(np.full((8, 8, 8), 1e308)), grid)
    with pytest.raises(PatchSizeError, match="2 channels"):
        weight_table(Volume(np.ones((2, 8, 8, 8))), grid)
    with pytest.raises(PatchSizeError, match="complex64"):
        weight_table(Volume(np.ones((8, 8, 8), np.complex64)), grid)


def test_no_weight_is_an_error_or_anywhere():
    """It says whether the map is empty, or what patches are cut from."""
    empty = np.zeros((12, 12, 12), np.float32)
    elsewhere = empty.copy()
    elsewhere[11] = 1
    plan = plan_of((12, 12, 12), Crop((0, 0, 0), (8, 12, 12)))
    for weights, message in ((empty, "all its weights are 0"), (elsewhere, "above 0 lies there")):
        with pytest.raises(PatchSizeError, match=f"'likely'(.|\n)*{message}(.|\n)*fallback="):
            starts_of(WeightedPatch((4, 4, 4), Volume(weights), "likely"), plan, 1)
        op = WeightedPatch((4, 4, 4), Volume(weights), fallback="anywhere")
        assert len({tuple(start) for start in starts_of(op, plan, 50)}) > 40
    with pytest.raises(ValueError, match="fallback is one of"):
        WeightedPatch((4, 4, 4), Volume(empty), fallback="skip")


def test_voxels_are_read_once_each_and_never_again(tmp_path):
    """Nor in another process, nor for an estimate; a damaged file is made again."""
    weights = smooth((30, 20, 10))
    np.save(tmp_path / "a.npy", weights)
    volume = Volume(tmp_path / "a.npy")
    before = IO_COUNTERS.snapshot()

    def read():
        return (IO_COUNTERS.snapshot() - before).bytes_read

    with looking_ahead():
        assert weight_table(volume, volume.grid) is None
    assert read() == 0
    first, *_ = (weight_table(volume, volume.grid) for _ in range(3))
    assert read() == weights.nbytes
    forget_masks()
    again = weight_table(Volume(tmp_path / "a.npy"), volume.grid)
    assert read() == weights.nbytes
    numbers = np.random.default_rng(0).random((50, 2))
    for region in (Region.of_shape(volume.grid.shape), Region((3, 4, 5), (20, 9, 10))):
        assert np.array_equal(first.pick(region, numbers), again.pick(region, numbers))

    (file,) = (tmp_path / "cache" / "sampling").iterdir()
    for content in (b"nothing", file.read_bytes()[:99]):
        file.write_bytes(content)
        forget_masks()
        assert weight_table(volume, volume.grid).total == first.total


def test_memory_is_bounded_together_with_masks(tmp_path, monkeypatch):
    """The least recently used go first, where no disk keeps them."""
    (tmp_path / "no-folder").write_bytes(b"")
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "no-folder"))
    monkeypatch.setattr(weight_index.MASKS.memory, "most", 4000)
    volumes = [Volume(smooth((8, 8, 8), n)) for n in range(6)]
    tables = [weight_table(v, v.grid) for v in volumes]

    with looking_ahead():
        known = [weight_table(v, v.grid) is not None for v in volumes]

    assert max(table.nbytes for table in tables) < 1400
    assert known == sorted(known)
    assert 2 <= sum(known) < 6
