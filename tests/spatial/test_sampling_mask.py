"""Sampling masks: counts of cells, shares of boxes, and that patches lie where they say."""

import importlib.util
import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.core import IO_COUNTERS, Grid, Region, Stream
from voxpipe.core.call_site import looking_ahead
from voxpipe.core.errors import PatchSizeError
from voxpipe.spatial import (
    Flip,
    MaskedPatch,
    MaskedRegion,
    Rotate,
    Rotate90,
    Spacing,
    SpatialPlan,
    UniformRegion,
    forget_masks,
    sampling_mask,
    weight_table,
)
from voxpipe.spatial.placing import sampling_mask as kept_tables
from voxpipe.spatial.placing import sampling_mask as looked_up
from voxpipe.spatial.placing.sampling_mask import (
    EACH,
    MOST_VALUES,
    CellCounts,
    cell_for,
    count_cells,
)
from voxpipe.testing import SpatialOpContract
from voxpipe.volumes import Volume

SIZES = st.tuples(*[st.integers(1, 9)] * 3)


@pytest.fixture(autouse=True)
def forgotten(tmp_path, monkeypatch):
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "cache"))
    forget_masks()


class TestMaskedPatch(SpatialOpContract):
    """What every op promises."""

    MASK = Volume(np.ones((9, 8, 7), np.uint8), affine=SpatialOpContract.GRID.affine)

    def make(self):
        return MaskedPatch((4, 4, 4), self.MASK, "label")

    def make_nothing(self):
        return MaskedPatch((9, 8, 7), self.MASK, "label", min_fraction=0)

    # A mask is looked up where the voxels are stored: another grid there is another draw.
    test_fused_is_one_after_another = None


class TestMaskedRegion(SpatialOpContract):
    """What every op promises."""

    def make(self):
        return MaskedRegion(
            UniformRegion((6, 7, 6), (3, 3, 3), (2, 1, 4)),
            MaskedPatch((3, 3, 3), TestMaskedPatch.MASK, "label"),
        )

    def make_nothing(self):
        region = UniformRegion((99, 99, 99), (99, 99, 99), (1, 1, 1))
        return MaskedRegion(region, MaskedPatch((99, 99, 99), TestMaskedPatch.MASK, "label"))

    test_fused_is_one_after_another = None
    # Of a grid that is smaller than the patch.
    pytestmark = pytest.mark.filterwarnings("ignore:a volume is smaller")


def plan_of(shape):
    return SpatialPlan.identity(Grid(shape, np.eye(4)))


def drawn_of(op, plan, item=0):
    return op.draw(Stream(0, 0, (item,), "lazy_patch").generator(), plan)


def part_of(array, plan):
    """Return the voxels of the label under a plan of whole voxels, by looking each up."""
    index = np.indices(plan.shape).reshape(3, -1)
    at = np.rint(plan.matrix[:3, :3] @ index + plan.matrix[:3, 3:]).astype(int)
    inside = ((at >= 0) & (at < np.array(array.shape)[:, None])).all(axis=0)
    found = np.zeros(index.shape[1], array.dtype)
    found[inside] = array[tuple(at[:, inside])]
    return found.reshape(plan.shape)


def random_label(seed, shape, share=0.1, labels=(1,)):
    generator = np.random.default_rng(seed)
    label = np.where(generator.random(shape) < share, generator.choice(labels, shape), 0)
    return label.astype(np.uint8)


@given(shape=SIZES, cell=st.tuples(*[st.integers(1, 4)] * 3), seed=st.integers(0, 99))
def test_counts_and_shares_of_whole_cells_are_exact(shape, cell, seed):
    """As a sum over every voxel, for any box of whole cells; half a cell is half its voxels."""
    flags = random_label(seed, shape, 0.5)[None] == 1
    mask = CellCounts(shape, cell, count_cells(flags, cell))

    assert mask.counts.sum() == flags.sum()
    for start, cells in itertools.product(
        itertools.product((0, 1), repeat=3), ((1, 1, 1), (2, 1, 3))
    ):
        low = np.array(start) * cell
        box = tuple(slice(a, a + n * c) for a, n, c in zip(low, cells, cell, strict=True))
        size = np.array(cells) * cell
        assert mask.share(0, low[None], size)[0] == pytest.approx(flags[0][box].sum() / size.prod())


@given(
    shape=SIZES,
    cell=st.tuples(*[st.integers(1, 4)] * 3),
    start=st.tuples(*[st.integers(-3, 9)] * 3),
    size=SIZES,
    seed=st.integers(0, 99),
)
def test_a_share_lies_between_that_of_the_cells_inside_and_touched(shape, cell, start, size, seed):
    """Only cells that a face cuts are estimated."""
    flags = random_label(seed, shape, 0.5)[None] == 1
    mask = CellCounts(shape, cell, count_cells(flags, cell))
    voxels = np.prod(size)
    box = Region(start, tuple(a + n for a, n in zip(start, size, strict=True)))
    least = most = 0
    for index in np.ndindex(mask.counts.shape[1:]):
        low = [i * c for i, c in zip(index, cell, strict=True)]
        high = [min(a + c, n) for a, c, n in zip(low, cell, shape, strict=True)]
        one = Region(tuple(low), tuple(high))
        most += 0 if one.intersect(box).is_empty else mask.counts[0][index]
        least += mask.counts[0][index] if box.contains(one) else 0

    share = mask.share(0, np.array([start]), size)[0]

    assert least / voxels - 1e-9 <= share <= most / voxels + 1e-9


@given(
    shape=st.tuples(*[st.integers(8, 30)] * 3),
    size=st.tuples(*[st.integers(1, 12)] * 3),
    seed=st.integers(0, 99),
    turn=st.sampled_from(["as it is", "flipped", "turned"]),
)
@pytest.mark.filterwarnings("ignore:a volume is smaller")
def test_every_patch_holds_a_voxel_of_the_mask(shape, size, seed, turn):
    """However few there are, also of a flipped or turned volume."""
    label = random_label(seed, shape, 0.001)
    label[tuple(np.random.default_rng(seed).integers(0, shape))] = 1
    plan = plan_of(shape)
    if turn != "as it is":
        before = Flip() if turn == "flipped" else Rotate90(1, (0, 2))
        plan = before.then(plan, drawn_of(before, plan))
    op = MaskedPatch(size, Volume(label), "label")

    for item in range(5):
        drawn = drawn_of(op, plan, item)
        patch = op.then(plan, drawn)
        assert part_of(label, patch).any()
        for start, n, s in zip(drawn["start"], plan.shape, size, strict=True):
            assert 0 <= start <= n - s or s > n


def test_each_voxel_of_the_mask_is_as_likely_as_another():
    """Two blobs, one of three times as many voxels, come up as one to three (5 sigma)."""
    label = np.zeros((64, 16, 16), np.uint8)
    label[4:8, 4:8, 4:7] = 1
    label[40:44, 4:8, 4:8] = 1
    label[44:52, 4:8, 4:7] = 1
    op = MaskedPatch((8, 8, 8), Volume(label), "label")
    starts = [drawn_of(op, plan_of(label.shape), n)["start"][0] for n in range(1000)]

    share = np.mean([start > 24 for start in starts])

    large = label[40:].sum() / label.sum()
    assert abs(share - large) < 5 * np.sqrt(large * (1 - large) / 1000)


@pytest.mark.parametrize("size", [1, 8, 48])
@pytest.mark.parametrize("turn", ["as it is", "flipped", "turned", "cropped"])
def test_the_voxel_in_the_middle_is_of_the_class(size, turn):
    """Always, however small the class and however large the patch; near a face it is inside."""
    label = np.zeros((64, 60, 56), np.uint8)
    label[30, 31, 29] = 1  # a vessel
    label[10:50, 40:44, 8:50] = 2
    label[2, 3, 1] = 3  # no patch of 8 has it in its middle
    plan = plan_of(label.shape)
    before = {"flipped": Flip(), "turned": Rotate90(1, (0, 2))}.get(turn)
    if before is not None:
        plan = before.then(plan, drawn_of(before, plan))
    if turn == "cropped":
        plan = plan.crop((1, 2, 0), (60, 55, 50))
    op = MaskedPatch((size,) * 3, Volume(label), "label", 0, {0: 1, 1: 1, 2: 1, 3: 1})
    seen = set()

    for item in range(80):
        drawn = drawn_of(op, plan, item)
        patch = part_of(label, op.then(plan, drawn))
        place = [
            (start == 0) or (start == n - size)
            for start, n in zip(drawn["start"], plan.shape, strict=True)
        ]
        middle = patch[(size // 2,) * 3]
        assert drawn["class"] in patch
        assert middle == drawn["class"] or any(place)
        if drawn["class"] == 1 and size < 48:
            assert middle == 1
        seen.add(drawn["class"])

    assert seen == {0, 1, 2, 3}


@pytest.mark.parametrize("labels", [{0: 1, 5: 0, "other": 0}, {5: 1}, {"other": 1, 0: 0}])
def test_each_voxel_of_a_class_is_as_likely_as_another(labels):
    """By a chi-square test over every voxel, at 5 sigma, and 0 anywhere else."""
    label = random_label(7, (9, 8, 7), 0.3, (5, 6, 9))
    (drawn,) = [one for one, weight in labels.items() if weight]
    inside = ~np.isin(label, [n for n in labels if n != "other"]) if drawn == "other" else None
    inside = (label == drawn) if inside is None else inside
    op = MaskedPatch((1, 1, 1), Volume(label), "label", class_weights=labels)
    plan, counts = plan_of(label.shape), np.zeros(label.shape, int)

    count = 10 * int(inside.sum())
    for item in range(count):
        counts[tuple(drawn_of(op, plan, item)["start"])] += 1

    assert counts[~inside].sum() == 0
    chi2, freedom = np.square(counts[inside] - 10).sum() / 10, inside.sum() - 1
    assert chi2 < freedom + 5 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("before", [Rotate((20, 10, 30)), Spacing((0.7, 0.6, 0.9))])
def test_behind_an_interpolation_the_middle_still_looks_the_class_up(before):
    """Where a voxel of the grid does: by nearest neighbour, as the label is sampled."""
    label = random_label(3, (24, 24, 24), 0.02)
    plan = before.then(plan_of(label.shape), drawn_of(before, plan_of(label.shape)))
    op = MaskedPatch((6, 6, 6), Volume(label), "label")

    middles = []
    for item in range(80):
        drawn = drawn_of(op, plan, item)
        patch = part_of(label, op.then(plan, drawn))
        assert patch.any()
        if all(0 < start < n - 6 for start, n in zip(drawn["start"], plan.shape, strict=True)):
            middles.append(patch[3, 3, 3])

    assert middles.count(1) == len(middles) > 20


def test_every_label_can_be_a_class_of_its_own():
    """Of those that there are, 0 apart; of several channels, what is not 0 in any."""
    label = random_label(3, (12, 12, 12), 0.2, (3, 40, 7)).astype(np.int16)
    label[0, 0, 0] = -1
    grid = Grid(label.shape, np.eye(4))

    mask = sampling_mask(Volume(label), grid, None, (EACH,))

    assert mask.labels == (-1, 3, 7, 40)
    assert [mask.tables[n].voxels for n in range(4)] == [(label == n).sum() for n in mask.labels]
    assert mask.shares is None
    both = Volume(np.stack([label, label == 3]))
    assert sampling_mask(both, grid, None, (EACH,)).tables[0].voxels == np.count_nonzero(label)
    cells = Volume(np.arange(12**3).reshape(12, 12, 12))
    with pytest.raises(PatchSizeError, match=r"more than 1024 labels(.|\n)*'other': 1"):
        sampling_mask(cells, grid, None, (EACH,))


@pytest.mark.skipif(importlib.util.find_spec("nilearn") is None, reason="has the template")
def test_the_table_of_a_real_segmentation_is_small(tmp_path):
    """A byte for 500 voxels, in memory and on disk; what is rare is kept whole beside what is not.

    ICBM 152: grey and white matter of a head, at 1 mm, as the demo uses them.
    """
    import nibabel
    import nilearn

    folder = Path(nilearn.__file__).parent / "datasets" / "data"
    name = "mni_icbm152_{}_tal_nlin_sym_09a_converted.nii.gz"
    maps = [
        np.asarray(nibabel.load(folder / name.format(tissue)).dataobj) for tissue in ("gm", "wm")
    ]
    label = np.zeros(maps[0].shape, np.uint8)
    for number, tissue in enumerate(maps, 1):
        label[tissue > tissue.max() / 2] = number
    label[100, 120:132, 90], label[40, 40, 40] = 3, 4
    np.save(tmp_path / "a.npy", label)
    volume = Volume(tmp_path / "a.npy")

    mask = sampling_mask(volume, volume.grid, None, (0, 1, 2, 3, 4))

    assert mask.nbytes <= label.size / 500
    (file,) = (tmp_path / "cache" / "sampling").iterdir()
    assert file.stat().st_size <= label.size / 500
    assert [table.is_exact for table in mask.tables] == [False, False, False, True, True]
    assert not mask.is_exact
    # nnU-Net keeps 10 000 voxels of each class.
    assert min(table.places for table in mask.tables[:3]) > 30_000
    numbers = np.random.default_rng(0).random((4000, 2))
    for number, table in enumerate(mask.tables):
        voxels = table.pick(volume.grid.region, numbers)
        assert (label[tuple(voxels.T)] == number).all()
        inside = np.argwhere(label == number)
        spread = np.maximum(inside.std(axis=0), 0.5)
        assert (np.abs(voxels.mean(axis=0) - inside.mean(axis=0)) < 0.1 * spread).all()


def test_a_crop_without_a_place_that_is_kept_has_its_voxels_still():
    """Where a table has room for some places only, what is cropped is looked at by itself."""
    label = random_label(0, (64, 64, 64), 0.3)
    whole = sampling_mask(Volume(label), Grid(label.shape, np.eye(4)), None, (1,))
    assert not whole.is_exact
    crops = [
        plan_of(label.shape).crop((a, b, 30), (3, 3, 3)) for a, b in np.ndindex(60, 2) if a % 3 == 0
    ]
    op = MaskedPatch((1, 1, 1), Volume(label), "label", class_weights={1: 1})
    empty = [plan for plan in crops if not whole.tables[0].has_some(plan.source_region())]
    assert len(empty) > 5

    for plan in empty:
        if part_of(label, plan).any():
            assert part_of(label, op.then(plan, drawn_of(op, plan))).all()


def test_classes_come_up_by_their_weights():
    """The background is a class like others; one that is missing leaves its part to them."""
    label = random_label(3, (24, 24, 24), 0.05, (1, 2))
    op = MaskedPatch((4, 4, 4), Volume(label), "label", 0, {0: 1, 1: 2, 2: 1, 9: 4})
    plan = plan_of(label.shape)

    drawn = [drawn_of(op, plan, n) for n in range(800)]

    counts = np.bincount([one["class"] for one in drawn], minlength=3)
    expected = np.array([200, 400, 200])
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()
    for one in drawn:
        assert (part_of(label, op.then(plan, one)) == one["class"]).any()


@pytest.mark.parametrize("min_fraction", [0.3, 0.6, 0.9])
def test_the_share_is_kept_to_within_the_cells_that_are_cut(min_fraction):
    """A ball: the patch's true share is at least what was asked for, less half a cell around."""
    grid = np.indices((40, 40, 40)) - 19.5
    label = (np.square(grid).sum(axis=0) < 15**2).astype(np.uint8)
    op = MaskedPatch((16, 16, 16), Volume(label), "label", min_fraction)
    plan = plan_of(label.shape)

    shares = [part_of(label, op.then(plan, drawn_of(op, plan, n))).mean() for n in range(100)]

    assert min(shares) > min_fraction - 0.05
    assert np.mean(np.array(shares) >= min_fraction - 0.01) > 0.9
    assert len(set(shares)) > 10


def test_the_one_place_is_found():
    """Where tries miss it, every cell is looked at; and the same stream finds the same."""
    label = random_label(0, (64, 64, 64), 0.01)
    label[40:48, 40:48, 40:48] = 1
    op = MaskedPatch((8, 8, 8), Volume(label), "label", 0.6)
    plan = plan_of(label.shape)

    for item in range(20):
        drawn = drawn_of(op, plan, item)
        assert part_of(label, op.then(plan, drawn)).mean() > 0.5
        assert drawn == drawn_of(op, plan, item)


def test_no_place_is_an_error_or_anywhere():
    """It names the volume and what to do; the other way has the draws of a uniform patch."""
    empty = Volume(np.zeros((12, 12, 12), np.uint8))
    few = Volume(random_label(0, (12, 12, 12), 0.01))
    plan = plan_of((12, 12, 12))

    with pytest.raises(PatchSizeError, match=r"'label'\) has no place among its 0 voxels"):
        drawn_of(MaskedPatch((4, 4, 4), empty, "label"), plan)
    with pytest.raises(PatchSizeError, match=r"no place with 0\.5 of a patch \(4, 4, 4\) inside"):
        drawn_of(MaskedPatch((4, 4, 4), few, "label", 0.5), plan)
    with pytest.raises(PatchSizeError, match=r"labels \[3\]"):
        drawn_of(MaskedPatch((4, 4, 4), few, "label", class_weights={3: 1}), plan)
    for mask in (empty, few):
        op = MaskedPatch((4, 4, 4), mask, "label", 0.5, fallback="anywhere")
        assert len({tuple(drawn_of(op, plan, n)["start"]) for n in range(50)}) > 40


def test_only_the_present_grid_counts():
    """After a crop, patches lie in the crop, though the mask has more elsewhere."""
    label = np.ones((40, 40, 40), np.uint8)
    plan = plan_of(label.shape).crop((16, 8, 0), (12, 16, 40))
    op = MaskedPatch((8, 8, 8), Volume(label), "label", 1.0)

    for item in range(50):
        region = op.then(plan, drawn_of(op, plan, item)).source_region()
        assert Region((16, 8, 0), (28, 24, 40)).contains(region)


def test_after_a_turn_the_middle_is_still_in_the_mask():
    """What is drawn is a place in the world; its share alone is known of whole voxels only."""
    label = np.zeros((40, 40, 40), np.uint8)
    label[10:12, 20:22, 30:32] = 1
    turn = Rotate((20, 10, 30))
    plan = turn.then(plan_of(label.shape), drawn_of(turn, plan_of(label.shape)))
    op = MaskedPatch((12, 12, 12), Volume(label), "label")

    patch = op.then(plan, drawn_of(op, plan))

    at = patch.points_to_output([[10.5, 20.5, 30.5]])[0]
    assert ((at > 0) & (at < 11)).all()
    with pytest.raises(PatchSizeError, match=r"lazy_patch\(\) before"):
        drawn_of(MaskedPatch((12, 12, 12), Volume(label), "label", 0.1), plan)


@pytest.mark.parametrize("turned", [False, True])
def test_a_coarse_mask_on_a_grid_of_its_own(turned):
    """Each voxel is what the nearest one of the mask is, 0 outside of it."""
    coarse = np.zeros((5, 5, 4), np.uint8)
    coarse[2, 3, 1] = 1
    affine = np.diag([8.0, 8, 8, 1])
    affine[:3, 3] = 3.5
    if turned:
        coarse, affine = np.moveaxis(coarse, 0, 2), affine[:, [1, 2, 0, 3]]
    grid = Grid((40, 36, 32), np.eye(4))

    mask = sampling_mask(Volume(coarse, affine=affine), grid, (8, 8, 8), ())

    assert mask.tables[0].voxels == 512
    assert mask.shares.counts[0, 2, 3, 1] == 512


@pytest.mark.parametrize("flips", [(0,), (1, 2), (0, 1, 2)])
def test_a_mask_whose_axes_point_elsewhere(flips):
    """LPS beside RAS, of one extent: a voxel is where its affine says."""
    label = random_label(4, (12, 12, 12), 0.1)
    stored, affine = np.flip(label, flips), np.eye(4)
    for axis in flips:
        affine[axis, axis], affine[axis, 3] = -1, 11
    grid = Grid(label.shape, np.eye(4))

    mask = sampling_mask(Volume(stored, affine=affine), grid, None, ())
    weights = weight_table(Volume(stored, affine=affine), grid)

    for table in (mask.tables[0], weights):
        voxels, _ = table.every(grid.region, 2**20)
        assert np.array_equal(np.argwhere(label), voxels[np.lexsort(voxels.T[::-1])])


def test_channels_are_joined_or_refused():
    """Inside is where any channel is; as a class, a channel of several is its number."""
    both = np.zeros((2, 8, 8, 8), np.uint8)
    both[0, :2], both[1, 6:] = 1, 3
    grid = Grid((8, 8, 8), np.eye(4))

    assert sampling_mask(Volume(both), grid, (2, 2, 2), ()).tables[0].voxels == 4 * 64
    assert sampling_mask(Volume(both), grid, (2, 2, 2), (1,)).tables[0].voxels == 2 * 64
    with pytest.raises(PatchSizeError, match="2 channels"):
        sampling_mask(Volume(both), grid, (2, 2, 2), (2,))


MANY = np.arange(20**3).reshape(20, 20, 20)
SOUND = {
    "instances": (MANY, "uint16", "label"),
    "one label below 0 for what is ignored": (MANY - 1, "int32", "label"),
    "organs that nobody called labels": (MANY % (MOST_VALUES + 1), "int16", "intensity"),
    "organs stored as floats": (MANY % (MOST_VALUES + 1) * 1.00001, "float32", "intensity"),
    "mostly background": (np.where(MANY % 20, 0, MANY % 60), "int64", "intensity"),
}
IMAGES = {
    "ct": (MANY - 1000, "int16", "intensity"),
    "mr": (MANY % (MOST_VALUES + 2), "uint8", "intensity"),
    "floats of whole numbers": (MANY - 1000, "float32", "intensity"),
    "ct that is called a label": (MANY - MOST_VALUES - 1, "int16", "label"),
}


@pytest.mark.parametrize("name", SOUND)
def test_labels_are_masks_however_many(name):
    values, dtype, kind = SOUND[name]
    volume = Volume(values.astype(dtype), kind=kind)

    mask = sampling_mask(volume, volume.grid, (4, 4, 4), ())

    assert mask.tables[0].voxels == np.count_nonzero(values.astype(dtype))


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_is_no_mask(name, tmp_path, monkeypatch):
    """Whoever asks, also where it was read as a label before; of classes nothing is refused."""
    values, dtype, kind = IMAGES[name]
    np.save(tmp_path / "a.npy", values.astype(dtype))
    volume = Volume(tmp_path / "a.npy", kind=kind)
    called = f"more than {MOST_VALUES} different values {'below' if kind == 'label' else 'other'}"
    monkeypatch.setattr(looked_up, "SLAB_VOXELS", 4 * 20 * 20)
    if values.min() >= 0:
        label = Volume(tmp_path / "a.npy", kind="label")
        assert sampling_mask(label, volume.grid, (4, 4, 4), ()).tables[0].voxels > 0

    for _ in range(2):
        with pytest.raises(PatchSizeError, match=rf"a\.npy is given as mask=.*{called}"):
            sampling_mask(volume, volume.grid, (4, 4, 4), ())
        forget_masks()

    assert (
        sampling_mask(volume, volume.grid, (4, 4, 4), (1,)).tables[0].voxels == (values == 1).sum()
    )


def test_an_image_is_refused_when_it_is_seen(tmp_path, monkeypatch):
    """By the first slab, of which no voxel is read that was not read anyway."""
    monkeypatch.setattr(looked_up, "SLAB_VOXELS", 4 * 20 * 20)
    np.save(tmp_path / "a.npy", MANY.astype(np.int16))
    volume = Volume(tmp_path / "a.npy")
    before = IO_COUNTERS.snapshot()

    with pytest.raises(PatchSizeError, match=r"1 to 7983 among them(.|\n)*labels="):
        sampling_mask(volume, volume.grid, (4, 4, 4), ())

    assert (IO_COUNTERS.snapshot() - before).bytes_read == 4 * 20 * 20 * 2


def test_voxels_are_read_once_each_and_never_again(tmp_path, monkeypatch):
    """Slab by slab at first; not in another process with the same cache; nor for an estimate."""
    label = random_label(0, (30, 30, 30), 0.1)
    np.save(tmp_path / "a.npy", label)
    volume = Volume(tmp_path / "a.npy", kind="label")
    monkeypatch.setattr(looked_up, "SLAB_VOXELS", 8 * 30 * 30)
    plan, op = plan_of(label.shape), MaskedPatch((32, 32, 32), volume, "label")
    before = IO_COUNTERS.snapshot()

    with looking_ahead():
        assert sampling_mask(volume, plan.source, (8, 8, 8), ()) is None
    assert (IO_COUNTERS.snapshot() - before).reads == 0
    first = [sampling_mask(volume, plan.source, (8, 8, 8), ()) for _ in range(9)]
    assert (IO_COUNTERS.snapshot() - before).bytes_read == label.nbytes
    assert (IO_COUNTERS.snapshot() - before).reads > 1
    forget_masks()
    again = sampling_mask(Volume(tmp_path / "a.npy", kind="label"), op.mask.grid, (8, 8, 8), ())

    assert (IO_COUNTERS.snapshot() - before).bytes_read == label.nbytes
    assert np.array_equal(again.shares.counts, first[0].shares.counts)
    numbers = np.random.default_rng(0).random((50, 2))
    for region in (Region.of_shape(label.shape), Region((3, 4, 5), (20, 9, 10))):
        found = [mask.tables[0].pick(region, numbers) for mask in (first[0], again)]
        assert np.array_equal(*found)
        assert (label[tuple(found[0].T)] == 1).all()
    np.save(tmp_path / "a.npy", np.zeros_like(label)[:, :, 1:])
    changed = Volume(tmp_path / "a.npy")
    assert sampling_mask(changed, changed.grid, (8, 8, 8), ()).tables[0].voxels == 0


def test_a_damaged_file_in_the_cache_is_made_again(tmp_path):
    """It only saves time."""
    np.save(tmp_path / "a.npy", np.ones((8, 8, 8), np.uint8))
    volume = Volume(tmp_path / "a.npy")
    sampling_mask(volume, volume.grid, (2, 2, 2), ())
    (file,) = (tmp_path / "cache" / "sampling").iterdir()
    for content in (b"nothing", b"", file.read_bytes()[:60]):
        file.write_bytes(content)
        forget_masks()

        assert sampling_mask(volume, volume.grid, (2, 2, 2), ()).tables[0].voxels == 512


def test_memory_is_bounded(tmp_path, monkeypatch):
    """The least recently used go first, where no disk keeps them."""
    (tmp_path / "no-folder").write_bytes(b"")
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "no-folder"))
    monkeypatch.setattr(kept_tables.MASKS.memory, "most", 2000)
    volumes = [Volume(np.ones((8, 8, 8), np.uint8)) for _ in range(4)]
    for volume in volumes:
        sampling_mask(volume, volume.grid, (2, 2, 2), ())  # 64 cells, 768 bytes, and a run

    with looking_ahead():
        known = [sampling_mask(v, v.grid, (2, 2, 2), ()) is not None for v in volumes]

    assert known == [False, False, True, True]


def test_cells_suit_the_patch():
    """A quarter of it, eight at most, one at least."""
    assert cell_for((96, 20, 3)) == (8, 5, 1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"min_fraction": 1.5},
        {"min_fraction": -0.1},
        {"class_weights": {1: 0}},
        {"class_weights": {1.5: 1}},
        {"class_weights": {1: -1}},
        {"fallback": "skip"},
    ],
)
def test_arguments_that_make_no_sense_are_refused(wrong):
    """At construction, with the value."""
    with pytest.raises(ValueError, match="got"):
        MaskedPatch((4, 4, 4), Volume(np.ones((4, 4, 4))), "label", **wrong)
