"""Policies that do not go together are an error, never a silent choice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core.errors import PolicyConflict


def opened(**given: Any) -> Any:
    case = {"image": np.full((6, 6, 6), 7, np.int16), "label": np.ones((6, 6, 6), np.uint8)}
    return vp.from_cases([case]).open_volume(**given)


CONFLICTS = {
    "key then all": lambda: opened().rotate(5, mode={"image": "cubic"}).rotate(3, mode="linear"),
    "all then key": lambda: opened().rotate(5, mode="linear").rotate(3, mode={"image": "cubic"}),
    "a fill dropped": lambda: (
        opened()
        .rotate(5, fill={"image": -1000}, padding={"image": "constant"})
        .rotate(3, padding="border")
    ),
    "policies=": lambda: opened(policies={"image": vp.Policy("cubic")}).rotate(5, mode="linear"),
    "policies= by key": lambda: opened(policies={"image": vp.Policy("cubic")}).pad(
        2, mode={"image": "nearest"}
    ),
}


@pytest.mark.parametrize("case", CONFLICTS)
def test_conflicts_are_refused_where_they_are_written(case: str) -> None:
    """At construction, with both places."""
    with pytest.raises(PolicyConflict, match=r"here, but .* at "):
        CONFLICTS[case]()


@pytest.mark.parametrize(
    "sound",
    [
        lambda: opened().rotate(5, padding={"label": "border"}).pad(2, padding="reflection"),
        lambda: opened().rotate(5, mode={"image": "cubic"}).pad(2, mode="cubic"),
        lambda: opened().rotate(5, mode={"image": "cubic"}).flush().pad(2, mode="linear"),
        lambda: opened(policies={"image": vp.Policy("cubic")}).pad(2, padding="reflection"),
        lambda: opened().rotate(5).crop((1,) * 3, (4,) * 3, hard=True, fill=-5).pad(1),
        lambda: opened().pad(2, padding="constant", fill=-1024),
    ],
    ids=["labels", "the same", "flushed", "another field", "hard crop", "constant"],
)
def test_what_goes_together_is_taken(sound: Any) -> None:
    """Nothing is refused that has one meaning."""
    sample = next(iter(sound()))
    assert sample["image"].realize().size


USELESS = {
    "border": (lambda: opened().pad(2, fill=-1024), "padding='constant'"),
    "no label": (lambda: opened().pad(2, fill={"label": 0.5}), "holds labels"),
    "too large": (
        lambda: opened().pad(2, padding="constant", fill=40000),
        "does not fit into the int16",
    ),
    "negative label": (lambda: opened().pad(2, fill={"label": -1}), "does not fit into the uint8"),
}


@pytest.mark.parametrize("case", USELESS)
def test_a_fill_that_nobody_can_use_is_refused(case: str) -> None:
    """With what to write instead."""
    wrong, words = USELESS[case]
    with pytest.raises(PolicyConflict, match=words):
        [patch.realize() for patch in next(iter(wrong())).values()]


BORDER, CONSTANT = vp.Policy("linear", "border"), vp.Policy("linear", "constant")


@pytest.mark.parametrize(
    "make",
    [
        lambda: opened().pad(2, fill=-1000),
        lambda: opened().shuffle().lazy_patch(4).rotate(5, fill={"image": -1000}),
        lambda: opened(policies={"image": BORDER, "label": CONSTANT}).rotate(5, fill=-1000),
        lambda: opened().rotate(5, padding={"label": "constant"}).flip(fill=-1000),
        lambda: opened().rotate(5, padding="border", fill=-1000),
        lambda: opened().one_of([vp.spatial.Rotate(5)], fill=-1000),
        lambda: opened().resample_to(vp.Grid((4, 4, 4), np.eye(4)), fill=-1000),
    ],
    ids=["alone", "by key", "policies=", "of others", "beside", "choice", "grid"],
)
def test_a_fill_is_refused_where_no_pipe_pads_with_it(make: Any) -> None:
    """With the first sample, before a voxel is read."""
    with pytest.raises(PolicyConflict, match=r"(?s)'image' has padding='border'.*Write padding="):
        next(iter(make()))


@pytest.mark.parametrize(
    "make",
    [
        lambda: opened().rotate(5, padding="constant").flip(fill=-1000),
        lambda: opened().rotate(5, padding="constant").flush().flip(fill=-1000),
        lambda: opened().rotate(5, padding={"image": "constant"}).flip(fill=-1000),
        lambda: opened(policies={"image": CONSTANT}).rotate(5, fill={"image": -1000}),
        lambda: opened(policies={"image": CONSTANT}).rotate(5, fill=-1000),
        lambda: opened().rotate(5, fill={"label": 2}),
        lambda: opened(labels=("image", "label")).rotate(5, fill=-1000),
        lambda: opened(keys=["label"]).rotate(5, fill=-1000),
        lambda: opened().center_crop(4, hard=True).flip(0).rotate(5, fill=-1000),
        lambda: (
            vp.from_cases([{"image": vp.Volume(np.ones((4, 4, 4), np.uint8), kind="label")}])
            .open_volume(labels=())
            .rotate(5, fill=3)
        ),
        lambda: opened().map(constant).rotate(5, fill=-1000),
    ],
    ids=[
        *("before", "before a flush", "by key", "policies= by key", "policies=", "label"),
        *("labels only", "label alone", "hard crop", "a label made", "map"),
    ],
)
def test_a_fill_that_something_uses_is_taken(make: Any) -> None:
    """No chain that works is refused: each gives its first sample."""
    assert next(iter(make()))


def constant(sample: Any) -> Any:
    """A user's function that changes policies."""
    image = sample["image"]
    return sample.with_data(image=image.with_pending(image.pending, policy=CONSTANT))


def test_a_fill_is_for_a_hard_crop_of_any_kind() -> None:
    """One that asks a volume, and one in a choice, as much as one by numbers."""
    box = vp.spatial.CenterCrop(4, hard=True)
    turned = opened().rotate(5)

    for chain in (
        turned.foreground_crop("label", hard=True, fill=-5),
        turned.one_of([box, (box, box)], fill=-5),
    ):
        assert next(iter(chain))["image"].policy.fill == -5


def test_sampling_of_a_choice_that_samples_nothing_is_refused() -> None:
    """Of value ops alone: it would be dropped without a word."""
    ops = [vp.intensity.Noise(1.0), vp.intensity.Gamma(2.0)]

    with pytest.raises(PolicyConflict, match="mode= says how voxels are sampled, and none"):
        opened().one_of(ops, mode="nearest")
    assert opened().one_of([*ops, vp.spatial.Rotate(5)], mode="nearest").sampling.changes
