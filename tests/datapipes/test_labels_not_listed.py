"""Labels that nobody listed: drawn as one class, told where they would vanish."""

from typing import Any

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core.errors import MissingLabel, PatchSizeError, VolumeError

LABEL = np.zeros((24, 24, 24), np.uint8)
LABEL[4:7, 4:7, 4:7] = 2
LABEL[18:20, 18:20, 18:20] = 5


def patches(weights: Any, count: int = 40) -> list[Any]:
    """Patches of one voxel, so that the voxel in the middle is all there is."""
    pipe = vp.from_cases([{"label": LABEL}]).open_volume()
    return list(pipe.lazy_patch(1, samples_per_volume=count, mask="label", class_weights=weights))


def test_other_is_every_label_that_is_not_listed() -> None:
    """As often as its weight says, and the voxel is of one of them."""
    samples = patches({0: 1, "other": 3})

    drawn = [sample["label"].draws["lazy_patch"]["class"] for sample in samples]
    assert set(drawn) == {0, "other"}
    assert drawn.count("other") > drawn.count(0)
    for sample, name in zip(samples, drawn, strict=True):
        assert (sample["label"].realize().item() in (2, 5)) == (name == "other")


def test_other_leaves_out_what_is_listed() -> None:
    """2 has a class of its own, so the other one is 5 (and 0)."""
    samples = patches({2: 0, 0: 0, "other": 1}, 10)

    assert {sample["label"].realize().item() for sample in samples} == {5}


def test_a_listed_label_that_is_nowhere_is_told() -> None:
    """Where the volume holds labels that are not listed, it is a mistake."""
    with pytest.warns(MissingLabel, match=r"lists 1, which a mask does not hold"):
        patches({0: 1, 1: 3})[0]["label"].realize()


def test_a_case_without_a_lesion_is_no_mistake() -> None:
    """All that it holds is listed; a warning would be an error here."""
    pipe = vp.from_cases([{"label": np.zeros((8, 8, 8), np.uint8)}]).open_volume()

    sample = next(iter(pipe.lazy_patch(4, mask="label", class_weights={0: 1, 1: 3})))

    assert sample["label"].draws["lazy_patch"]["class"] == 0


@pytest.mark.parametrize("weights", [[1, 1, 1], {"others": 1}, {0.5: 1}, {"other": -1}])
def test_weights_that_are_none_are_refused_where_they_are_written(weights: Any) -> None:
    """The message shows the form, and the word for all others."""
    with pytest.raises(PatchSizeError, match="'other': 1") as caught:
        patches(weights)

    assert "test_labels_not_listed.py" in str(caught.value)


def test_one_hot_refuses_to_lose_a_class() -> None:
    """A count means labels 0, 1, 2; this volume has 2 and 5."""
    opened = vp.from_cases([{"label": LABEL}]).open_volume()

    with pytest.raises(VolumeError, match="channels for 0, 1, 2, and a patch has 5") as caught:
        next(iter(opened.one_hot(3).batch_patches(1)))
    assert ".one_hot(3)" in str(caught.value)


@pytest.mark.parametrize("arguments", [{"classes": (2, 5)}, {"classes": 3, "unknown": "drop"}])
def test_one_hot_of_what_is_asked_for(arguments: Any) -> None:
    """0 may be left out; with unknown="drop" anything may."""
    opened = vp.from_cases([{"label": LABEL}]).open_volume()

    batch = next(iter(opened.one_hot(**arguments).batch_patches(1)))["label"][0].numpy()

    classes = arguments["classes"] if isinstance(arguments["classes"], tuple) else range(3)
    assert np.array_equal(batch, np.stack([LABEL == label for label in classes]))
