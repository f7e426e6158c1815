"""``lazy_patch(class_weights=)`` with a mask of several channels: each channel is a class."""

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core.errors import PatchSizeError

LABEL = np.zeros((9, 8, 7), np.uint8)
LABEL[4, 3:5, 3] = 1
LABEL[3, 4, 2:5] = 2
ONE_HOT = np.stack([LABEL == n for n in range(3)])


def starts(mask, count=60, **options):
    """Return where patches begin, by one draw after another."""
    pipe = vp.from_cases([{"image": np.zeros(mask.shape[-3:], np.float32), "mask": mask}])
    pipe = pipe.open_volume(keys=["image", "mask"], labels=())
    pipe = pipe.lazy_patch(3, samples_per_volume=count, mask="mask", **options)
    batches = vp.DataLoader2(pipe.batch_patches(10), seed=3)
    return [meta["draws"]["lazy_patch"] for batch in batches for meta in batch["meta"]]


@pytest.mark.parametrize("dtype", [np.uint8, np.bool_, np.float32])
@pytest.mark.parametrize(
    "options",
    [
        {"class_weights": {0: 1, 1: 2, 2: 1}},
        {"class_weights": {1: 1, 2: 1}, "min_fraction": 0.1},
        {"class_weights": {1: 1, 2: 3}, "oversample": 0.5},
    ],
)
def test_one_hot_draws_as_labels(options, dtype):
    """The same patches as by the label that it was made of."""
    assert starts(ONE_HOT.astype(dtype), **options) == starts(LABEL, **options)


def test_other_channels_together():
    """Half of the patches have the background in the middle, the others any foreground."""
    draws = starts(ONE_HOT.astype(np.uint8), class_weights={0: 1, "other": 1})

    # Near a face a patch about background is moved inward.
    found = [tuple(np.add(draw["start"], 1)) for draw in draws if draw["class"] == "other"]
    assert 20 <= len(found) <= 40
    assert {LABEL[place] for place in found} == {1, 2}


def test_probabilities_are_torchios():
    """A voxel is in the middle as often as TorchIO's probability map says."""
    tio = pytest.importorskip("torchio")
    likely = np.zeros((2, 9, 8, 7), np.float32)
    likely[1, 4, 4, 3], likely[1, 2, 3, 3], likely[0, 5, 3, 4] = 0.75, 0.25, 0.1
    sampler = tio.LabelSampler(3, "mask", {0: 1, 1: 3})
    subject = tio.Subject(mask=tio.LabelMap(tensor=likely))
    expected = sampler.get_probability_map(subject).numpy()[0]

    draws = starts(likely, 400, class_weights={0: 1, 1: 3})

    found = np.zeros(expected.shape)
    for draw in draws:
        found[tuple(np.add(draw["start"], 1))] += 1 / len(draws)
    assert ((found > 0) == (expected > 0)).all()
    assert np.abs(found - expected / expected.sum()).max() < 0.06


def test_a_voxel_of_two_classes_counts_for_both():
    """Channels may overlap."""
    both = np.zeros((2, 5, 5, 5), np.uint8)
    both[:, 2, 2, 2] = 1

    draws = starts(both, 20, class_weights={0: 1, 1: 1})

    assert {tuple(draw["start"]) for draw in draws} == {(1, 1, 1)}
    assert {draw["class"] for draw in draws} == {0, 1}


@pytest.mark.parametrize(
    ("mask", "classes", "words"),
    [
        (ONE_HOT, {3: 1}, "3 channels, each a class.*0 to 2"),
        (ONE_HOT * -1.0, {1: 1}, "given as mask=, and holds -1.0 at voxel"),
        (ONE_HOT * np.nan, {1: 1}, "given as mask=, and holds nan at voxel"),
        (ONE_HOT * np.uint8(0), {1: 1}, "no place"),
    ],
)
def test_what_is_no_class_is_refused(mask, classes, words):
    """A number without a channel, and values that are no weights."""
    with pytest.raises(PatchSizeError, match=f"(?s){words}"):
        starts(mask, class_weights=classes)
