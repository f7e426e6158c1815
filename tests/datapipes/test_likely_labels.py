"""A volume whose key says label is not interpolated without a word."""

import warnings

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.batching import collate as gather
from voxpipe.core.errors import LikelyLabel
from voxpipe.core.suggest import looks_like_label

VOLUME = np.zeros((4, 4, 4), np.uint8)


def cases(*keys, count=1):
    return vp.from_cases([dict.fromkeys(("image", *keys), VOLUME) for _ in range(count)])


@pytest.mark.parametrize(
    "key",
    [
        "gt",
        "GT",
        "gt1",
        "ground_truth",
        "groundtruth",
        "tumorSeg",
        "brainmask",
        "lesions",
        "rois",
        "annot",
        "annotation",
        "label_2",
        "liver-segmentation",
        "masks_left",
        "nuclei",
        "cells",
        "cellInstances",
        "target",
        "instances_2",
    ],
)
def test_usual_names_of_labels_are_known(key):
    """As a word or at its end, in any case, with a number or a plural."""
    assert looks_like_label(key)


@pytest.mark.parametrize(
    "key",
    [
        "image",
        "ct",
        "weight",
        "t1",
        "masked_ct",
        "segmented",
        "heroin",
        "length",
        "nuclei_dapi",
        "target_ct",
        "cellular",
        "membrane",
        "",
    ],
)
def test_other_names_are_not(key):
    """Words that only begin like a label, or hold a short one inside, are none."""
    assert not looks_like_label(key)


def test_the_warning_names_key_line_and_both_ways_out():
    """It comes once for all cases and epochs, and repeats the call with the key in it."""
    pipe = cases("gt", count=3).open_volume()

    with pytest.warns(LikelyLabel) as told:
        list(pipe.concat(pipe))

    (warning,) = told
    text = str(warning.message)
    assert "'gt' is sampled as an intensity" in text
    assert "test_likely_labels.py" in text
    assert "labels=('label', 'labels', 'mask', 'masks', 'seg', 'segmentation', 'gt')" in text


@pytest.mark.parametrize("labels", [("gt",), ("label",)])
def test_choosing_labels_silences_it(labels):
    """Who says which keys hold labels has decided about the others too."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (sample,) = list(cases("gt").open_volume(labels=labels))

    assert (sample["gt"].kind == "label") == ("gt" in labels)


def test_a_volume_of_the_users_own_kind_is_left_alone():
    """A Volume says itself what it is."""
    volume = vp.Volume(VOLUME, kind="label")

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (sample,) = list(vp.from_cases([{"gt": volume}]).open_volume())

    assert sample["gt"].kind == "label"


def test_explain_shows_how_each_key_is_sampled():
    """Kind, mode, padding and fill, as the chain left them; and what resamples."""
    pipe = cases("label").open_volume().rotate(5, padding="zeros").batch_patches(1)

    text = pipe.explain()

    assert "\n  image  intensity  linear, zeros outside\n" in text
    assert "\n  label  label      nearest, constant 0 outside\n" in text
    assert text.splitlines()[-1].startswith("resampled by: native ")
    assert "resampled by: native " in vp.DataLoader2(pipe).explain()


def test_explain_says_why_numpy_resamples(monkeypatch):
    """The kernel that was switched off is named with its switch."""
    monkeypatch.setenv("VOXPIPE_NATIVE", "0")

    text = cases().open_volume().explain()

    assert "resampled by: NumPy, as VOXPIPE_NATIVE=0 asks" in text


@pytest.mark.parametrize("labels", [{}, {"labels": ("image", "seg")}])
def test_a_volume_that_was_made_an_intensity_is_told(labels):
    """``labels=`` says what is opened here; a Volume is what it was made."""
    pipe = vp.from_cases([{"seg": vp.Volume(VOLUME), "image": VOLUME}] * 2).open_volume(**labels)

    with pytest.warns(LikelyLabel, match='kind="label"') as told:
        list(pipe)

    assert len(told) == 1
    assert "'seg' is a Volume of an intensity" in str(told[0].message)


@pytest.mark.parametrize(
    ("volume", "labels"),
    [(vp.Volume(VOLUME, kind="label"), {}), (vp.Volume(VOLUME), {"labels": ("image",)})],
    ids=["a label", "said otherwise"],
)
def test_a_volume_that_was_meant_so_is_not_told(volume, labels):
    """It is a label, or labels were chosen without it."""
    pipe = vp.from_cases([{"seg": volume, "image": VOLUME}]).open_volume(**labels)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(pipe)


def blobs(count=2):
    """Return cases of 16^3 voxels, an image of noise and a ball of ones in float32."""
    rng = np.random.default_rng(0)
    places = np.indices((16, 16, 16)) - 7.5
    ball = ((places**2).sum(0) < 30).astype(np.float32)
    image = rng.normal(size=ball.shape).astype(np.float32)
    return [{"image": image, "gt": ball, "y": ball} for _ in range(count)]


def turned(pipe, realize=False):
    pipe = pipe.lazy_patch((16, 16, 16), samples_per_volume=2).rotate((10, 20))
    return pipe.realize().batch_patches(2) if realize else pipe.batch_patches(2)


def told_by(loader, epochs=2):
    """Return the LikelyLabel warnings of some epochs, as Python shows them by default."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(epochs):
            for _ in loader:
                pass
    if isinstance(loader, vp.DataLoader2):
        loader.shutdown()
    return [str(w.message) for w in caught if w.category is LikelyLabel]


def guessed(told):
    return [text for text in told if "is sampled as an intensity: interpolated" in text]


def seen(told):
    return [text for text in told if "few whole numbers" in text]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "report", [None, vp.explain, vp.datapipes.shuffle_report], ids=["", "explain", "report"]
)
def test_a_loader_tells_what_it_looked_at_before(workers, report):
    """It plans some batches to choose how to read; so do reports. The user sees it once."""
    pipe = turned(vp.from_cases(blobs()).open_volume())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if report is not None:
            report(pipe)

    told = told_by(vp.DataLoader2(pipe, None, vp.MultiProcessingReadingService(workers)))

    assert ["'gt'" in text for text in guessed(told)] == [True]


def listed(folder):
    return vp.list_cases(f"{folder}/*/", image="image.npy", gt="gt.npy", y="y.npy")


def given(folder):
    cases = [{name: f"{folder}/c{n}/{name}.npy" for name in ("image", "gt", "y")} for n in (0, 1)]
    return vp.from_cases(cases)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("chain", [listed, given])
def test_each_data_set_has_its_own_warning(tmp_path, chain, workers):
    """Python shows a text once for each line, and both are read on the same."""
    told = []
    for name in ("first", "second"):
        for number, case in enumerate(blobs()):
            (tmp_path / name / f"c{number}").mkdir(parents=True)
            for key, array in case.items():
                np.save(tmp_path / name / f"c{number}" / f"{key}.npy", array)
        service = vp.MultiProcessingReadingService(workers)
        pipe = turned(chain(tmp_path / name).open_volume())
        told += told_by(vp.DataLoader2(pipe, None, service))

    for texts in (guessed(told), [text for text in seen(told) if text.startswith("'y'")]):
        assert ["first" in text for text in texts] == [True, False]


def test_raised_as_an_error_it_stops_every_epoch():
    """A look-ahead that swallows the error leaves it to the epoch."""
    loader = vp.DataLoader2(turned(vp.from_cases(blobs()).open_volume()))

    for _ in range(2):
        with pytest.raises(LikelyLabel):  # warnings are errors in all tests
            list(loader)
    loader.shutdown()


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("realize", [False, True])
def test_classes_in_a_batch_are_told_where_it_is_made(workers, realize):
    """Interpolated or not, once a key: that of 'gt' says label already; the image is none."""
    pipe = turned(vp.from_cases(blobs()).open_volume(), realize)

    service = vp.MultiProcessingReadingService(workers)
    every = told_by(vp.DataLoader2(pipe, None, service, fuse=not realize))

    (text,) = seen(every)
    assert text.startswith("'y'")
    place = "realize()" if realize else "batch_patches(2)"
    assert place in text
    assert "open_volume(labels=...)" in text
    assert [one.split()[0] for one in guessed(every)] == ["'gt'"]


@pytest.mark.parametrize(
    "options",
    [
        {"labels": ("gt", "y")},
        {"labels": ("image_seg", "gt"), "keys": ("image", "gt", "y")},
        {"policies": dict.fromkeys(("gt", "y", "image_seg"), vp.Policy("nearest"))},
    ],
)
def test_what_was_said_of_a_key_is_not_looked_at(options):
    """Labels that were chosen, and volumes that are not interpolated."""
    cases = [{**case, "image_seg": case["y"]} for case in blobs()]
    if "keys" in options:
        options["keys"] = (*options["keys"], "image_seg")
    pipe = turned(vp.from_cases(cases).open_volume(**options))

    assert seen(told_by(vp.DataLoader2(pipe))) == []


def of_array(array, size):
    """Return the chain that turns patches of an array, under a key that says nothing."""
    pipe = vp.from_cases([{"y": array}] * 4).open_volume()
    return pipe.lazy_patch((size,) * 3).rotate((-5, 5)).batch_patches(2)


@pytest.mark.parametrize("dtype", [np.float32, np.uint8, np.int16, np.float64])
@pytest.mark.parametrize("size", [8, 20])
def test_classes_are_known_by_what_is_stored(dtype, size):
    """The batch holds what lies between them, and few of the whole numbers that they were."""
    label = np.zeros((24, 24, 24), dtype)
    label[6:18, 6:18, 6:18] = 1
    pipe = of_array(label, size)

    (told,) = seen(told_by(vp.DataLoader2(pipe)))

    assert told.startswith("'y' is sampled as an intensity")
    assert "batch_patches(2)" in told


def test_classes_that_were_normalized_are_known():
    """Value ops change the batch, and not what is stored."""
    label = np.zeros((24, 24, 24), np.uint8)
    label[6:18] = 1
    pipe = vp.from_cases([{"y": label}] * 4).open_volume().rotate(5).normalize()

    assert len(seen(told_by(pipe.realize().batch_patches(2)))) == 1


def image_of_few_values(name):
    """Return 24^3 voxels of an image that a rule of few whole numbers alone takes for classes."""
    rng = np.random.default_rng(0)
    i, j, _ = np.indices((24, 24, 24))
    return {
        "empty CT": np.full(i.shape, -1024, np.int16),
        "air": np.rint(rng.normal(0, 2, i.shape)).clip(0).astype(np.uint8),
        "air in float32": np.rint(rng.normal(9, 2, i.shape)).astype(np.float32),
        "air of a CT": rng.integers(-1004, -996, i.shape).astype(np.int16),
        "ramp": i.astype(np.float32),
        "grey levels": ((i + j) // 2).astype(np.uint8),
    }[name]


@pytest.mark.parametrize("dtype", [np.float32, np.int16])
@pytest.mark.parametrize(
    "constants",
    [[0], [7], [0, 1, 2, 3], [5, 5, 0], [(0, 3)], [(1, 2, 2), (2, 1, 1)]],
    ids=str,
)
def test_images_of_one_value_each_are_not_told(dtype, constants):
    """Whether all hold the same or each its own, and each channel: nothing in it is a class."""
    empty = np.zeros((1, 12, 12, 12), dtype)
    cases = [{"y": empty + np.array(v, dtype).reshape(-1, 1, 1, 1)} for v in constants] * 4
    pipe = vp.from_cases(cases).open_volume().lazy_patch((8, 8, 8)).rotate((-5, 5))

    assert seen(told_by(vp.DataLoader2(pipe.batch_patches(2)))) == []


@pytest.mark.parametrize(
    "name", ["empty CT", "air", "air in float32", "air of a CT", "ramp", "grey levels"]
)
def test_images_of_few_values_are_not_told(name):
    """Noise has neighbours that differ, gradients along an axis; a constant has one value."""
    assert seen(told_by(vp.DataLoader2(of_array(image_of_few_values(name), 20)))) == []


def test_a_corner_of_few_grey_levels_is_not_told():
    """One patch of integers says nothing, nor many of them where another has more values."""
    corner = np.zeros((24, 24, 24), np.uint8)
    corner[8:16] = 1
    rest = np.random.default_rng(0).integers(0, 200, corner.shape).astype(np.uint8)
    cases = [{"y": corner}, {"y": rest}, *[{"y": corner}] * 8]
    pipe = vp.from_cases(cases).open_volume().rotate((-5, 5)).batch_patches(2)

    assert seen(told_by(vp.DataLoader2(pipe))) == []


def test_integers_that_nothing_interpolates_are_not_told():
    """They reach the batch as they are stored."""
    label = np.zeros((24, 24, 24), np.uint8)
    label[6:18] = 1
    pipe = vp.from_cases([{"y": label}] * 8).open_volume().flip(0, p=0.5).batch_patches(2)

    assert seen(told_by(vp.DataLoader2(pipe))) == []


def test_a_batch_is_looked_at_in_the_beginning_only(monkeypatch):
    """What it costs ends after a few batches of each key."""
    looked = []
    monkeypatch.setattr(gather, "look_like_classes", lambda values: looked.append(1) or False)
    cases = [{"image": case["image"]} for case in blobs(20)]

    assert len(told_by(vp.DataLoader2(turned(vp.from_cases(cases).open_volume())))) == 0
    assert len(looked) == gather._LOOKED_AT


class Loud:
    """A backend of the user's own that warns when it is opened."""

    shape, affine, dtype = (1, 4, 4, 4), np.eye(4), np.dtype(np.uint8)

    def __init__(self, path, **options):
        warnings.warn("an old file", UserWarning, stacklevel=1)

    def __getitem__(self, region):
        return np.zeros(self.shape, np.uint8)[region]


def test_warnings_of_other_libraries_are_not_swallowed():
    """A file that is opened while looking ahead stays open, so that nobody opens it again."""
    vp.register_backend("loud", lambda request: str(request.path).endswith(".loud"), Loud)
    pipe = vp.from_cases([{"image": "a.loud"}]).open_volume().lazy_patch(2).batch_patches(1)
    try:
        with vp.DataLoader2(pipe) as loader, pytest.warns(UserWarning, match="an old file"):
            next(iter(loader))
    finally:
        vp.volumes.unregister_backend("loud")
