"""What the recipe draws is what nnU-Net draws: shares, moments, extremes and what lies between.

nnU-Net's own draws, 10 000 of each transform, are in ``tests/data/draws-nnunet.npz``; here the
chain is asked as often. Tolerances are those of such numbers: six standard errors of a share or a
mean, and the distance of Kolmogorov and Smirnov that comes up once in ten million pairs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
from checkout import ROOT

import voxpipe as vp
from voxpipe.extensions.recipes import nnunet_augmentation

DRAWS = 10_000
ERRORS = 6
# sqrt(-ln(1e-7 / 2) / 2): times sqrt(1/n + 1/m) it is the distance that is once in ten million.
KOLMOGOROV = 2.9
# Where n even numbers end, in n-ths of their range: further inside with a chance of e^-16.
ENDS = 16
CHANNELS = 2
AUGMENTATIONS: dict[str, dict[str, Any]] = {"": {}, "flat/": {"degrees": 180, "plane": True}}


@cache
def references() -> Mapping[str, Any]:
    with np.load(ROOT / "tests" / "data" / "draws-nnunet.npz") as file:
        return dict(file)


@cache
def drawn(kind: str) -> dict[str, list[Any]]:
    """Return what each pipe of the recipe drew, by its name, for as many patches."""
    image = np.zeros((CHANNELS, 8, 8, 8), np.float32)
    previous = np.zeros((8, 8, 8), np.uint8)
    opened = vp.from_cases([{"image": image, "previous": previous}]).open_volume(
        labels=("previous",)
    )
    patches = nnunet_augmentation(
        opened.lazy_patch(4, samples_per_volume=DRAWS), **AUGMENTATIONS[kind]
    )
    how = {"p_channel": 0.5, "keys": "previous"}
    masks = patches.one_hot((1, 2), unknown="drop", keys="previous")
    masks = masks.random_morphology((1, 8), p=0.4, **how).drop_component(0.15, p=0.2, **how)
    found: dict[str, list[Any]] = {}
    for sample in vp.DataLoader2(masks, None, seed=11):
        for name, params in {**sample["previous"].draws, **sample["image"].draws}.items():
            found.setdefault(name, []).append(params)
    assert {len(each) for each in found.values()} == {DRAWS}
    return found


def share_is(name: str, flags: Any) -> None:
    """A share is that of nnU-Net, to six standard errors."""
    theirs, times = references()[name]
    ours, count = int(np.sum(flags)), len(flags)
    common = (theirs + ours) / (times + count)
    error = math.sqrt(common * (1 - common) * (1 / times + 1 / count))
    assert abs(ours / count - theirs / times) <= ERRORS * error, name


def numbers_are(name: str, values: Any) -> None:
    """Mean, deviation, both ends and the distribution are those of nnU-Net."""
    ours = np.sort(np.asarray(values, float).ravel())
    theirs = references()[name].astype(float)
    mean, std, count = references()[f"{name}/moments"]
    scatter = math.sqrt(1 / count + 1 / ours.size)
    assert abs(ours.mean() - mean) <= ERRORS * std * scatter + 1e-7, name
    # The fourth moment of what is drawn evenly is 1.8 of the squared variance.
    assert abs(ours.std() - std) <= ERRORS * std * math.sqrt(0.8 / 4) * scatter + 1e-7, name
    width = theirs[-1] - theirs[0]
    nearest = ENDS * width / min(count, ours.size) + 1e-6
    assert abs(ours[0] - theirs[0]) <= nearest, name
    assert abs(ours[-1] - theirs[-1]) <= nearest, name
    # A thousandth for the quantiles that were kept of theirs.
    parts = np.searchsorted(ours, theirs, "right") / ours.size
    if width > 0:
        distance = np.abs(parts - np.linspace(0, 1, theirs.size)).max()
        assert distance <= KOLMOGOROV * scatter + 1e-3, name


def channels_of(kind: str, name: str) -> tuple[list[Any], list[Any]]:
    """Return what was drawn where a pipe acts at all, and for each channel of these."""
    acting = [params for params in drawn(kind)[name] if params is not None]
    share = f"{kind}{NAMES[name]}/acts"
    share_is(share, [params is not None for params in drawn(kind)[name]])
    assert {len(one["channels"]) for one in acting} == {CHANNELS}
    return acting, [channel for one in acting for channel in one["channels"]]


NAMES = {
    "per_channel": "blur",
    "per_channel#2": "brightness",
    "per_channel#3": "contrast",
    "per_channel#4": "low_resolution",
    "per_channel#5": "inverted gamma",
    "per_channel#6": "gamma",
}


def not_alike(name: str, one: Any, other: Any) -> None:
    """Two numbers have nothing to do with each other, neither here nor there."""
    for correlation, count in (references()[name], (np.corrcoef(one, other)[0, 1], len(one))):
        assert abs(correlation) <= ERRORS / math.sqrt(count), name


@pytest.mark.slow
@pytest.mark.parametrize("kind", AUGMENTATIONS)
def test_draws_are_those_of_nnunet(kind: str) -> None:
    """Of all that the default draws, for cubes and for flat patches."""
    rotations = drawn(kind)["rotate"]
    share_is(f"{kind}rotate/acts", [one is not None for one in rotations])
    degrees = np.array([one["degrees"] for one in rotations if one is not None])
    for axis in range(1 if kind else 3):
        numbers_are(f"{kind}rotate/{axis}", degrees[:, axis])
    zooms = drawn(kind)["zoom"]
    share_is(f"{kind}zoom/acts", [one is not None for one in zooms])
    factors = np.array([one["factor"] for one in zooms if one is not None])
    numbers_are(f"{kind}zoom/scale", 1 / factors[:, 1])
    assert (factors[:, 2] == factors[:, 1]).all()
    assert (factors[:, 0] == (1 if kind else factors[:, 1])).all()
    noise = drawn(kind)["noise"]
    share_is(f"{kind}noise/acts", [one is not None for one in noise])
    numbers_are(f"{kind}noise/std", [one["std"] for one in noise if one is not None])
    for name in ("per_channel#2", "per_channel#3", "per_channel#5", "per_channel#6"):
        acting, channels = channels_of(kind, name)
        amount = "gamma" if "gamma" in NAMES[name] else "factor"
        there = {"factor": "multipliers"}.get(amount, amount)
        numbers_are(f"{kind}{NAMES[name]}/{there}", [one[amount] for one in channels])
        each = np.array([[one[amount] for one in params["channels"]] for params in acting])
        not_alike(f"{kind}{NAMES[name]}/alike", each[:, 0], each[:, 1])
    _, channels = channels_of(kind, "per_channel")
    share_is(f"{kind}blur/channels", [one is not None for one in channels])
    sigmas = np.array([one["sigma"] for one in channels if one is not None])
    numbers_are(f"{kind}blur/sigma", sigmas)
    not_alike(f"{kind}blur/axes", sigmas[:, 0], sigmas[:, 2])
    _, channels = channels_of(kind, "per_channel#4")
    share_is(f"{kind}low_resolution/channels", [one is not None for one in channels])
    scales = [1 / one["factor"] for one in channels if one is not None]
    for axis in range(3):
        is_left = kind and axis == 0
        numbers_are(f"{kind}low_resolution/{axis}", np.ones(len(scales)) if is_left else scales)


@pytest.mark.slow
def test_mirrors_and_the_cascade_are_drawn_as_by_nnunet() -> None:
    """Each axis by itself; masks in any order, by one of four operators."""
    flips = [() if one is None else one["axes"] for one in drawn("")["flip"]]
    for axis in range(3):
        share_is(f"mirror/{axis}", [axis in axes for axes in flips])
    for name, there in (("random_morphology", "morphology"), ("drop_component", "component")):
        acting = [one for one in drawn("")[name] if one is not None]
        share_is(f"{there}/acts", [one is not None for one in drawn("")[name]])
        each = [channel for one in acting for channel in one["channels"]]
        share_is(f"{there}/channels", [channel is not None for channel in each])
    acting = [one["channels"] for one in drawn("")["random_morphology"] if one is not None]
    both = [one for one in acting if None not in one]
    share_is("morphology/first", [one["turn"] < other["turn"] for one, other in both])
    each = [channel for one in acting for channel in one if channel is not None]
    numbers_are("morphology/radius", [one["radius"] for one in each])
    words = ("dilation", "erosion", "closing", "opening")  # in the order of OPERATORS
    for number, word in enumerate(words):
        share_is(f"morphology/{word}", [int(one["operator"]) == number for one in each])


def test_another_distribution_would_be_seen() -> None:
    """A power that is drawn evenly, and one that is drawn below 1 too often, are not nnU-Net's."""
    random = np.random.default_rng(0)
    with pytest.raises(AssertionError, match="gamma/gamma"):
        numbers_are("gamma/gamma", random.uniform(0.7, 1.5, 6000))
    with pytest.raises(AssertionError, match="low_resolution/1"):
        numbers_are("low_resolution/1", 1 / random.uniform(1, 2, 2500))
    with pytest.raises(AssertionError, match="gamma/acts"):
        share_is("gamma/acts", random.random(DRAWS) < 0.38)
    with pytest.raises(AssertionError, match="rotate/0"):
        numbers_are("rotate/0", random.uniform(-29, 29, 2000))
