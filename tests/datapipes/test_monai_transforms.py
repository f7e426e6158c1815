"""MONAI's dictionary transforms on samples: as pipes where they are equal, else on voxels."""

import numpy as np
import pytest
import torch
from checkout import ROOT
from scenes import same

import voxpipe as vp
from voxpipe.core.errors import SampleError

mt = pytest.importorskip("monai.transforms")
data = pytest.importorskip("monai.data")

SHAPE = (12, 11, 9)
# Turned by 30 degrees about z, 1.5 x 1 x 2.5 mm: axes at right angles, of no plane of the world.
AFFINE = np.eye(4)
AFFINE[:2, :2] = np.array([[np.cos(0.5), -np.sin(0.5)], [np.sin(0.5), np.cos(0.5)]]) * [1.5, 1.0]
AFFINE[2, 2], AFFINE[:3, 3] = 2.5, (10, -20, 30)
BOTH = ("image", "label")
HOW = {"mode": ("bilinear", "nearest"), "padding_mode": "border"}


def cases(count=1, channels=1):
    rng = np.random.default_rng(0)
    each = []
    for number in range(count):
        image = rng.normal(100, 40, (channels, *SHAPE)).astype(np.float32)
        label = (image[:1] > 100).astype(np.uint8) * (1 + number % 3)
        volumes = {"image": image, "label": label}
        each.append(
            {
                k: vp.Volume(v, affine=AFFINE, kind="label" if k == "label" else "intensity")
                for k, v in volumes.items()
            }
        )
    return each


def volumes(count=1, channels=1):
    return vp.from_cases(cases(count, channels)).open_volume()


def realized(pipe):
    return next(iter(pipe.realize()))


EXACT = {
    "Flipd": mt.Flipd(BOTH, (0, 2)),
    "RandFlipd of one axis": mt.RandFlipd(BOTH, 1, 1),
    "RandFlipd of all": mt.RandFlipd(BOTH, 1),
    "Rotate90d": mt.Rotate90d(BOTH, 1, (0, 2)),
    "RandRotate90d": mt.RandRotate90d(BOTH, 1, 1, (1, 2)),
    "RandRotated": mt.RandRotated(BOTH, (0.3, 0.3), (0.2, 0.2), (-0.4, -0.4), prob=1, **HOW),
    "RandAffined": mt.RandAffined(
        BOTH,
        prob=1,
        rotate_range=[(0.3, 0.3), (0.2, 0.2), (-0.1, -0.1)],
        translate_range=[(1, 1), (2, 2), (-1, -1)],
        scale_range=[(0.2, 0.2), (-0.1, -0.1), (0.1, 0.1)],
        mode=("bilinear", "nearest"),
        padding_mode="border",
    ),
    "RandAffined that mirrors": mt.RandAffined(
        BOTH, prob=1, translate_range=[(3.5, 3.5)], mode=("bilinear", "nearest")
    ),
    "Orientationd": mt.Orientationd(BOTH, "PIR", labels=None),
    "Orientationd to the closest": mt.Orientationd(BOTH, as_closest_canonical=True, labels=None),
    "Spacingd": mt.Spacingd(BOTH, (1.2, 1.27, 2.0), **HOW),
    "CenterSpatialCropd": mt.CenterSpatialCropd(BOTH, (5, 4, 3)),
    "NormalizeIntensityd": mt.NormalizeIntensityd("image", subtrahend=90.0, divisor=30.0),
    "ScaleIntensityRanged": mt.ScaleIntensityRanged("image", 0, 200, -1, 1, clip=True),
    "ScaleIntensityRanged beyond": mt.ScaleIntensityRanged("image", 50, 150, 0, 1),
    "ShiftIntensityd": mt.ShiftIntensityd("image", 12.5),
    "RandShiftIntensityd": mt.RandShiftIntensityd("image", (3.0, 3.0), prob=1),
    "RandScaleIntensityd": mt.RandScaleIntensityd("image", (0.25, 0.25), prob=1),
    "RandAdjustContrastd": mt.RandAdjustContrastd("image", prob=1, gamma=(1.7, 1.7)),
    "RandAdjustContrastd inverted": mt.RandAdjustContrastd(
        "image", prob=1, gamma=(0.7, 0.7), invert_image=True, retain_stats=True
    ),
}


@pytest.mark.parametrize("name", EXACT)
def test_an_equal_gives_what_monai_gives(name):
    """Values to float32, labels but for halves between two, and the affine."""
    transform = EXACT[name]

    ours = volumes().map_monai(transform)
    theirs = next(iter(volumes().map_monai(transform, lazy=False)))

    (lazy,) = list(ours)
    assert isinstance(lazy["image"], vp.LazyPatch)
    made = realized(ours)
    for key in BOTH:
        where = np.asarray(theirs.provenance()["sources"][key]["affine"])
        assert np.abs(lazy[key].affine - where).max() < 1e-4
        assert made[key].shape == theirs[key].shape
    assert (made["image"] - theirs["image"]).abs().max() < 2e-3 * 40
    assert (made["label"] == theirs["label"]).float().mean() > 0.999


def of_pipe(stream, *names):
    """Return what a record of draws says of an op, as numbers; nothing where it did not act."""

    def look(draws):
        record = draws.get(stream)
        if record is None:
            return []
        return [number for name in names for number in np.ravel(record[name]).tolist()]

    return look


def in_choice(draws):
    record = draws.get("random_apply")
    if not record or not record.get("chosen"):
        return []
    turn, move, zoom = record["drawn"][0]
    return [*turn["degrees"], *move["amount"], *zoom["factor"]]


def of_affine(t):
    grid = t.rand_affine.rand_affine_grid
    turns = [-np.degrees(one) for one in grid.rotate_params]
    return [*turns, *(-m for m in grid.translate_params), *(1 / s for s in grid.scale_params)]


def of_turn(t):
    inner = t.rand_rotate
    return [-np.degrees(one) for one in (inner.x, inner.y, inner.z)]


DRAWN = {
    "RandFlipd": (mt.RandFlipd(BOTH, 0.3, 2), of_pipe("flip", "axes"), lambda t: [2]),
    "RandAxisFlipd": (
        mt.RandAxisFlipd(BOTH, 0.4),
        of_pipe("flip", "axes"),
        lambda t: [t.flipper._axis],
    ),
    "RandRotate90d": (
        mt.RandRotate90d(BOTH, 0.6, 3),
        of_pipe("rotate90", "k"),
        lambda t: [t._rand_k],
    ),
    "RandRotated": (
        mt.RandRotated(BOTH, 0.3, (-0.1, 0.5), 0.2, prob=0.5, **HOW),
        of_pipe("rotate", "degrees"),
        of_turn,
    ),
    "RandAffined": (
        mt.RandAffined(
            BOTH,
            prob=0.7,
            rotate_range=(0.3, (0.1, 0.5), 0.2),
            translate_range=(1, (2, 5), 3),
            scale_range=(0.3, (-0.5, 0.2), 0.1),
            mode=("bilinear", "nearest"),
        ),
        in_choice,
        of_affine,
    ),
    "RandSpatialCropd": (
        mt.RandSpatialCropd(BOTH, (5, 4, 9), random_size=False),
        of_pipe("random_crop", "start"),
        lambda t: [part.start for part in t.cropper._slices],
    ),
    "RandShiftIntensityd": (
        mt.RandShiftIntensityd("image", (-3, 9), prob=0.5),
        of_pipe("brightness", "add"),
        lambda t: [t.shifter._offset],
    ),
    "RandScaleIntensityd": (
        mt.RandScaleIntensityd("image", 0.3, prob=0.5),
        of_pipe("brightness", "factor"),
        lambda t: [1 + t.scaler.factor],
    ),
    "RandAdjustContrastd": (
        mt.RandAdjustContrastd("image", prob=0.5, gamma=(0.5, 4.5)),
        of_pipe("gamma", "gamma"),
        lambda t: [t.adjuster.gamma_value],
    ),
}
DRAWS = 600


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
def test_an_equal_draws_as_often_and_as_far(name):
    """Share of samples, mean, deviation and ends of each number, within what 600 scatter."""
    transform, of_draws, of_monai = DRAWN[name]
    pipe = volumes().lazy_patch(9, samples_per_volume=DRAWS).map_monai(transform)
    if name == "RandSpatialCropd":
        pipe = vp.from_cases(cases() * DRAWS).open_volume().map_monai(transform)
    transform.set_random_state(0)
    # What MONAI makes of it is of no interest.
    small = torch.zeros(1, *(SHAPE if name == "RandSpatialCropd" else (2, 2, 2)))

    ours = [found for one in pipe if (found := of_draws(one["image"].draws))]
    theirs = []
    for _ in range(DRAWS):
        transform(dict.fromkeys(transform.keys, small))
        if getattr(transform, "_do_transform", True):  # a crop always does
            theirs.append(of_monai(transform))

    share = len(theirs) / DRAWS
    assert abs(len(ours) / DRAWS - share) < 4 * np.sqrt(0.5 / DRAWS)
    a, b = np.array(ours, float), np.array(theirs, float)
    assert a.shape[1] == b.shape[1]
    width = np.ptp(b, axis=0) + 1e-9
    assert (np.abs(a.mean(0) - b.mean(0)) < 0.08 * width).all()
    assert (np.abs(a.std(0) - b.std(0)) < 0.08 * width).all()
    for end in (np.min, np.max):
        assert (np.abs(end(a, axis=0) - end(b, axis=0)) < 0.08 * width).all()


def test_noise_is_drawn_alike():
    """Deviation from 0 to std for a sample, and normal numbers of it: as many and as wide."""
    transform = mt.RandGaussianNoised("image", prob=0.5, mean=2.0, std=3.0)
    flat = vp.from_cases([{"image": np.full(SHAPE, 7.0, np.float32)}]).open_volume()
    patches = flat.lazy_patch(6, samples_per_volume=300)

    def spread(pipe):
        noise = [one["image"].numpy() - 7 for one in pipe.realize()]
        acting = [one for one in noise if one.any()]
        deviations = np.array([one.std() for one in acting])
        means = np.array([one.mean() for one in acting])
        return np.array([len(acting) / 300, deviations.mean(), deviations.max(), means.mean()])

    ours = spread(patches.map_monai(transform))
    theirs = spread(patches.map_monai(transform, lazy=False))

    assert np.abs(ours - theirs).max() < 0.2
    assert abs(ours[0] - 0.5) < 0.1


def test_every_equal_is_tried():
    """Each has a comparison above, and a row on the page."""
    from voxpipe.extensions.bridges.monai_equals import _EQUALS

    exact = {name.partition(" ")[0] for name in EXACT}
    assert exact | set(DRAWN) | {"RandGaussianNoised"} == set(_EQUALS)
    page = (ROOT / "docs" / "bridges.md").read_text("utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    assert set(_EQUALS) <= {word for row in rows for word in row.split("`")}


LEADING = mt.RandRotated(BOTH, 0.3, prob=1, **HOW)
# None of these has an equal here.
REST = [
    mt.RandZoomd(BOTH, prob=0.8, min_zoom=0.7, max_zoom=1.4, mode=("trilinear", "nearest")),
    mt.RandHistogramShiftd("image", prob=0.8),
    mt.RandGaussianSmoothd("image", prob=0.8),
]


def batches(transform, service=None, **options):
    chain = volumes(3).lazy_patch(8, samples_per_volume=4).shuffle()
    chain = chain.map_monai(transform, **options).batch_patches(2)
    with vp.DataLoader2(chain, None, service, seed=3) as loader:
        return [*loader, *loader]


def test_the_first_become_pipes_and_monai_runs_the_rest():
    """The chain shows both, and what was drawn by pipes is told."""
    scale = mt.ScaleIntensityRanged("image", 0, 200, 0, 1)
    pipe = volumes().map_monai(mt.Compose([LEADING, mt.Compose([scale]), *REST, LEADING]))

    lines = str(pipe).splitlines()

    forms = [line.split("(")[0].split(".")[-1] for line in lines[3:-1]]
    assert forms == ["from_cases", "open_volume", "rotate", "rescale", "map_monai"]
    assert "RandZoomd, RandHistogramShiftd, RandGaussianSmoothd, RandRotated" in lines[-2]
    (sample,) = list(pipe)
    assert isinstance(sample["image"], torch.Tensor)
    assert list(sample.patches["image"].draws)[:1] == ["rotate"]


def test_equals_cost_one_interpolation_together():
    """Three that move voxels are one plan, as ``explain()`` says; MONAI would make three passes."""
    turn = mt.RandAffined(BOTH, prob=1, rotate_range=(0.2,), scale_range=(0.1,), **HOW)
    pipe = volumes().lazy_patch(8).map_monai(mt.Compose([LEADING, turn, mt.RandFlipd(BOTH, 1, 0)]))

    assert not pipe.has_rest
    # Of two volumes, one each.
    assert ", 2 interpolations, 0 copies" in pipe.batch_patches(1).explain()


def test_what_is_sampled_otherwise_stays_in_monai():
    """A volume is interpolated once, in one way: a second mode or padding ends what is lazy."""
    other = mt.RandRotated(BOTH, 0.3, prob=1, mode="nearest", padding_mode="border")
    pipe = volumes().map_monai(mt.Compose([LEADING, other]))

    assert [one.of for one in pipe.equals] == ["RandRotated"]
    assert pipe.has_rest


def test_behind_voxels_monai_runs_all():
    """After ``realize()``, or a transform without an equal, nothing is left to be put off."""
    flip = mt.Flipd(BOTH, 0)
    (plain,) = list(volumes().flip(0).realize())

    for pipe in (volumes().realize(), volumes().map_monai(mt.Identityd(BOTH))):
        (sample,) = list(pipe.map_monai(flip))
        assert torch.equal(sample["image"], plain["image"])


def test_workers_change_nothing():
    """What MONAI draws comes from seed, epoch and sample, wherever it runs and in which order."""
    transform = mt.Compose([LEADING, *REST])

    here = batches(transform)

    assert same(here, batches(transform, vp.MultiProcessingReadingService(2, "fork")))
    assert same(here, batches(transform, vp.ThreadReadingService(2)))
    assert not same(here[:6], here[6:])
    lazy = batches(transform, lazy=False)
    assert not same(here, lazy)


def test_what_the_user_holds_stays():
    """The transform in the chain is a copy: that of the user draws as if there were none."""
    transform = mt.RandHistogramShiftd("image", prob=0.5)
    transform.set_random_state(5)
    before = transform.R.get_state()[1].tolist()

    list(volumes(3).map_monai(transform))

    assert transform.R.get_state()[1].tolist() == before


def test_monai_sees_meta_tensors_on_the_grid_of_the_patch():
    """Affine of the patch, affine and file of the volume; other entries as they are."""
    seen = []

    def look(sample):
        seen.append(sample)
        return sample

    case = {**cases()[0], "age": 50}
    pipe = vp.from_cases([case]).open_volume().flip(0).lazy_patch(6)
    (sample,) = list(pipe.map_monai(look))

    (one,) = seen
    assert isinstance(one["image"], data.MetaTensor)
    patch = sample.patches["image"]
    assert np.array_equal(one["image"].affine, patch.affine)
    assert np.allclose(one["image"].meta["original_affine"], AFFINE)
    assert one["image"].meta["spatial_shape"].tolist() == [6, 6, 6]
    assert one["age"] == 50
    assert type(sample["image"]) is torch.Tensor


def test_a_new_grid_is_told():
    """Affine and matrix of what MONAI has moved are those of the result; there is no plan."""
    pipe = volumes().center_crop(8).map_monai(mt.Flipd(BOTH, 0), lazy=False)
    batch = next(iter(pipe.batch_patches(1)))
    plain = next(iter(volumes().center_crop(8).flip(0).batch_patches(1)))

    ours, theirs = (b["meta"][0]["sources"]["image"] for b in (plain, batch))

    for name in ("affine", "matrix"):
        assert np.abs(np.array(ours[name]) - np.array(theirs[name])).max() < 1e-4
    assert "plan" not in theirs
    assert theirs["changed_by"] == "map_monai(Compose(Flipd))"
    assert torch.equal(plain["image"], batch["image"])


def test_keys_come_and_go():
    """A new entry is batched, one that MONAI takes out is gone."""
    transform = mt.Compose([mt.CopyItemsd("image", 1, "copy"), mt.DeleteItemsd("label")])

    batch = next(iter(volumes().map_monai(transform).batch_patches(1)))

    assert list(batch) == ["image", "copy", "meta"]
    assert torch.equal(batch["image"], batch["copy"])
    assert list(batch["meta"][0]["sources"]) == ["image"]


def test_values_go_on_behind_it():
    """A pipe of values changes what MONAI left on its grid."""
    pipe = volumes().map_monai(mt.ThresholdIntensityd("image", 100.0)).brightness(2.0)

    (sample,) = list(pipe)
    image = cases()[0]["image"].numpy()

    assert np.allclose(sample["image"].numpy(), 2 * np.where(image > 100, image, 0), rtol=1e-6)


def test_a_lazy_transform_of_monai_is_done():
    """One that puts off its resampling does it before the sample goes on."""
    lazily = mt.RandZoomd(BOTH, 1, 1.5, 1.5, mode=("trilinear", "nearest"), lazy=True)
    now = mt.RandZoomd(BOTH, 1, 1.5, 1.5, mode=("trilinear", "nearest"))

    a, b = (next(iter(volumes().map_monai(one))) for one in (lazily, now))

    assert a["image"].shape == b["image"].shape
    assert not torch.equal(a["image"], realized(volumes())["image"])


REFUSED = {
    "several": (
        mt.Compose([mt.RandCropByPosNegLabeld(BOTH, "label", (4, 4, 4), num_samples=2)]),
        r"makes several samples of one[\s\S]*lazy_patch",
    ),
    "inside": (mt.OneOf([mt.RandSpatialCropSamplesd(BOTH, 4, 2)]), "makes several samples"),
    "files": (mt.LoadImaged("image"), r"reads the file[\s\S]*open_volume"),
    "arrays": (mt.RandFlip(0.5), r"RandFlip is for arrays[\s\S]*RandFlipd\(keys"),
    "none": ("flip", "takes a dictionary transform of MONAI, got 'flip'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_it_is_refused_where_it_is_written(name):
    """With what to write in its place, and the line."""
    transform, text = REFUSED[name]

    with pytest.raises(SampleError, match=text) as told:
        volumes().map_monai(transform)

    assert "test_monai_transforms.py" in str(told.value)


def test_several_of_one_are_refused_late():
    """A function that returns a list says so only when it runs."""
    pipe = volumes().map_monai(lambda sample: [sample, sample])

    with pytest.raises(SampleError, match="returned a list, and one sample stays one"):
        list(pipe)


def test_what_moves_some_volumes_only_is_refused():
    """A pipe moves all volumes; MONAI's transform moves those that it names."""
    alone = mt.RandFlipd("image", 1, 0)

    with pytest.raises(SampleError, match=r"moves image, and as the pipe flip\(\) all .* label"):
        list(volumes().map_monai(alone))

    (sample,) = list(volumes().map_monai(alone, lazy=False))
    plain = realized(volumes())
    assert torch.equal(sample["image"], plain["image"].flip(1))
    assert torch.equal(sample["label"], plain["label"])


def test_channels_that_monai_takes_together_are_refused():
    """Its gamma has one range for all channels, ours one for each."""
    gamma = mt.RandAdjustContrastd("image", 1)

    with pytest.raises(SampleError, match="takes its 2 channels together"):
        list(volumes(channels=2).map_monai(gamma))

    assert len(list(volumes(channels=2).map_monai(gamma, lazy=False))) == 1


def test_it_stands_before_the_batch():
    """It changes one sample."""
    with pytest.raises(SampleError, match=r"before batch_patches\(\)"):
        list(volumes().batch_patches(1).map_monai(mt.RandZoomd("image")))


def test_a_state_tells_other_settings_apart():
    """Those of the transforms count, what they have drawn does not."""

    def loader(most):
        transform = mt.Compose([mt.RandZoomd(BOTH, max_zoom=most), *REST])
        return vp.DataLoader2(volumes(3).map_monai(transform).batch_patches(1), seed=1)

    with loader(1.2) as one, loader(1.2) as other, loader(1.3) as another:
        next(iter(one))
        state = one.state_dict()
        other.load_state_dict(state)
        with pytest.raises(vp.errors.StateMismatch, match="map_monai"):
            another.load_state_dict(state)


class TestMetaTensors:
    def test_a_batch_is_what_monai_s_collate_gives(self):
        """Decollated, each is its patch with its affine; nothing is copied."""
        chain = volumes(3).center_crop(6).batch_patches(3)
        (plain,), (batch,) = list(chain), list(chain.to_metatensor())

        parts = data.decollate_batch(batch)

        assert batch["image"].is_batch
        assert len(parts) == 3
        for number, part in enumerate(parts):
            source = plain["meta"][number]["sources"]["image"]
            assert torch.equal(part["image"].as_tensor(), plain["image"][number])
            assert np.array_equal(part["image"].affine, source["affine"])
            assert part["image"].meta["filename_or_obj"] == source["file"]
            assert np.allclose(part["image"].meta["original_affine"], AFFINE)
            assert part["image"].meta["case"] == plain["meta"][number]["case"]

    def test_a_default_device_is_not_that_of_volumes(self):
        """As in batches without it: voxels and metadata stay where they are."""
        chain = volumes(2).center_crop(6)
        with torch.device("meta"):
            (batch,) = list(chain.batch_patches(2).to_metatensor())
            images = [batch["image"], *(one["image"] for one in chain.realize().to_metatensor())]

        tensors = [part for image in images for part in (image, *image.meta.values())]
        places = {str(part.device) for part in tensors if isinstance(part, torch.Tensor)}
        assert places == {"cpu"}

    def test_collate_of_monai_gives_the_same_meta(self):
        """Key by key, of samples that became MetaTensors one by one."""
        chain = volumes(2).center_crop(6)
        samples = [dict(one) for one in chain.realize().to_metatensor()]
        theirs = data.list_data_collate([{"image": one["image"]} for one in samples])["image"]

        (ours,) = [batch["image"] for batch in chain.batch_patches(2).to_metatensor()]

        assert torch.equal(ours.as_tensor(), theirs.as_tensor())
        assert ours.meta.keys() == theirs.meta.keys()
        assert torch.equal(ours.affine, theirs.affine)
        assert ours.meta["filename_or_obj"] == theirs.meta["filename_or_obj"]

    def test_workers_hand_over_plain_tensors(self):
        """They become MetaTensors in the process of the loader, in the memory that they are in."""
        chain = volumes(3).lazy_patch(6).batch_patches(1)
        service = vp.MultiProcessingReadingService(1, "fork")
        with vp.DataLoader2(chain.to_metatensor(), None, service, seed=1) as loader:
            theirs = [batch["image"].as_tensor().clone() for batch in loader]
        with vp.DataLoader2(chain, seed=1) as loader:
            assert all(map(torch.equal, theirs, [batch["image"] for batch in loader]))

    def test_what_is_not_read_yet_is_refused(self):
        """A sample of lazy patches has no tensors."""
        with pytest.raises(SampleError, match=r"not read yet[\s\S]*realize"):
            list(volumes().to_metatensor())
