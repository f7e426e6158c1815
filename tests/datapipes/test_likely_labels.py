"""A volume whose key says label is not interpolated without a word."""

import warnings

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core.errors import LikelyLabel
from voxpipe.datapipes.iter.likely_labels import looks_like_label

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
    ],
)
def test_usual_names_of_labels_are_known(key):
    """As a word or at its end, in any case, with a number or a plural."""
    assert looks_like_label(key)


@pytest.mark.parametrize(
    "key", ["image", "ct", "weight", "t1", "masked_ct", "segmented", "heroin", "length", ""]
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
