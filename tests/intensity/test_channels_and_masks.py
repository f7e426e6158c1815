"""Ops that draw for each channel, ops on masks, and amounts that are drawn on either side of 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import ndimage

import voxpipe as vp
from voxpipe.core.errors import BadRecord
from voxpipe.core.stream import Stream
from voxpipe.intensity import (
    Blur,
    Brightness,
    Contrast,
    DropComponent,
    Gamma,
    LowResolution,
    Noise,
    Normalize,
    PerChannel,
    RandomMorphology,
    Regions,
    Rescale,
    RescalePercentiles,
    SelectChannels,
    ValueOp,
)
from voxpipe.intensity.morphology import OPERATORS, dilate, morph, parts_of
from voxpipe.testing import ValueOpContract


class TestPerChannel(ValueOpContract):
    def make(self) -> ValueOp:
        return PerChannel(Blur((0.8, 1), "voxel", per_axis=True))

    def make_nothing(self) -> ValueOp | None:
        return PerChannel(Brightness())


class TestPerChannelPointwise(ValueOpContract):
    def make(self) -> ValueOp:
        return PerChannel(Noise((1, 2)))

    def make_nothing(self) -> ValueOp | None:
        return PerChannel(Noise(0))


class TestPerChannelOfOne(ValueOpContract):
    SHAPE = (1, 15, 12, 11)

    def make(self) -> ValueOp:
        return PerChannel(LowResolution((2, 3), by_inverse=True))

    def make_nothing(self) -> ValueOp | None:
        return PerChannel(LowResolution(1))


class TestTwoSidedBrightness(ValueOpContract):
    def make(self) -> ValueOp:
        return Brightness((0.5, 3), two_sided=True)

    def make_nothing(self) -> ValueOp | None:
        return Brightness(1, two_sided=True)


class TestLowResolutionAlongTwoAxes(ValueOpContract):
    def make(self) -> ValueOp:
        return LowResolution((2, 3), axes=(1, 2))

    def make_nothing(self) -> ValueOp | None:
        return LowResolution(1, axes=(1, 2))


class TestRegions(ValueOpContract):
    SHAPE = (1, 15, 12, 11)

    def make(self) -> ValueOp:
        return Regions(((1, 2, 3), (2, 3), 4))

    def make_nothing(self) -> ValueOp | None:
        return None


class _Masks(ValueOpContract):
    SHAPE = (3, 15, 12, 11)

    def values(self) -> NDArray[Any]:
        labels = np.random.default_rng(3).integers(0, 9, self.SHAPE[1:])
        return np.stack([labels == n for n in (1, 2, 3)]).astype(np.uint8)

    def test_a_patch_of_the_whole_is_the_whole_of_a_patch(self) -> None:
        """Not so: they act on the patch that they are given, and say so."""
        assert self.make().looks_at_all


class TestRandomMorphology(_Masks):
    def make(self) -> ValueOp:
        return RandomMorphology((1, 3))

    def make_nothing(self) -> ValueOp | None:
        return RandomMorphology((0.1, 0.2), operators=("dilate",))


class TestDropComponent(_Masks):
    def make(self) -> ValueOp:
        return DropComponent(0.5)

    def make_nothing(self) -> ValueOp | None:
        return DropComponent(0)


def _ball(radius: float) -> NDArray[np.bool_]:
    far = int(radius)
    i, j, k = np.ogrid[-far : far + 1, -far : far + 1, -far : far + 1]
    return np.asarray(i * i + j * j + k * k <= radius * radius)


def _masks() -> list[NDArray[np.bool_]]:
    random = np.random.default_rng(0)
    blobs = ndimage.gaussian_filter(random.normal(size=(17, 12, 9)), 1.5)
    return [blobs > 0.05, random.random((6, 9, 8)) > 0.97, np.ones((4, 5, 6), bool)]


@pytest.mark.parametrize("radius", [0.5, 1, 1.5, 2.3, 4])
@pytest.mark.parametrize("operator", OPERATORS)
def test_morphology_is_scipy_s_with_a_ball(operator: str, radius: float) -> None:
    """What is beyond the array is neither added nor worn off."""
    ball = _ball(radius)
    beyond = {"dilate": 0, "erode": 1}
    of_scipy = {"dilate": ndimage.binary_dilation, "erode": ndimage.binary_erosion}
    for mask in _masks():
        reference = mask
        for step in {"close": ("dilate", "erode"), "open": ("erode", "dilate")}.get(
            operator, (operator,)
        ):
            reference = of_scipy[step](reference, ball, border_value=beyond[step])

        assert np.array_equal(morph(mask, operator, radius), reference)


def test_parts_are_scipy_s() -> None:
    """Voxels that touch by a face, an edge or a corner are of one part."""
    random = np.random.default_rng(1)
    for share in (0.02, 0.08, 0.3):
        mask = random.random((19, 8, 13)) < share
        labels, count = parts_of(mask)
        reference, number = ndimage.label(mask, np.ones((3, 3, 3)))

        assert count == number
        pairs = set(zip(labels.ravel().tolist(), reference.ravel().tolist(), strict=True))
        assert len(pairs) == count + 1
    assert parts_of(np.zeros((2, 3, 4), bool))[1] == 0


def test_what_grows_takes_from_the_others() -> None:
    """No voxel is of two masks that were apart."""
    masks = np.zeros((2, 9, 9, 9), np.uint8)
    masks[0, 2:4, 4, 4], masks[1, 5:7, 4, 4] = 1, 1
    op = RandomMorphology(2, operators=("dilate",))
    params = op.of_channels(2).draw(Stream(0, 0, (0,), "").generator())
    assert params is not None

    after = op.apply(masks.copy(), params, None)  # type: ignore[arg-type]

    assert (after.sum(axis=0) <= 1).all()
    turns = [one["turn"] for one in params["channels"]]
    last = int(turns[1] > turns[0])
    grown = dilate(masks[1 - last] != 0, 2)
    left = (masks[last] != 0) & ~grown
    assert left.sum() < masks[last].sum()
    assert np.array_equal(after[last] != 0, dilate(left, 2))
    assert np.array_equal(after[1 - last] != 0, grown & ~dilate(left, 2))


def test_only_small_parts_are_dropped() -> None:
    """Of three parts the large one stays; one of the others goes."""
    mask = np.zeros((1, 10, 10, 10), np.uint8)
    mask[0, :5], mask[0, 7, 0, 0], mask[0, 9, 5, 5:7] = 1, 1, 1
    gone = set()
    for item in range(20):
        op = DropComponent(0.15)
        params = op.draw(Stream(0, 0, (item,), "").generator())
        assert params is not None
        after = op.apply(mask.copy(), params, None)  # type: ignore[arg-type]
        gone.add(int(mask.sum()) - int(after.sum()))

    assert gone == {1, 2}


def test_each_channel_has_amounts_of_its_own() -> None:
    """Two channels, two factors; where a channel is left alone its parameters are None."""
    case = {"image": np.ones((2, 4, 4, 4), np.float32)}
    pipe = vp.from_cases([case] * 40).open_volume(labels=())
    op = Brightness((0.5, 1.5), p=0.5)
    factors = []
    for sample in pipe.per_channel(op, p=0.9):
        drawn = sample["image"].draws["per_channel"]
        voxels = sample["image"].realize()
        each = [None, None] if drawn is None else drawn["channels"]
        expected = [1.0 if one is None else one["factor"] for one in each]
        assert np.allclose(voxels, np.reshape(expected, (2, 1, 1, 1)))
        factors.append(expected)

    table = np.array(factors)
    changed = table != 1
    assert changed.any(axis=0).all()
    assert (~changed).any(axis=0).all()
    assert (table[:, 0] != table[:, 1]).sum() > 10


def test_draws_of_channels_can_be_replayed_and_bad_ones_are_refused() -> None:
    """A record has an entry for each channel."""
    case = {"image": np.random.default_rng(0).random((2, 6, 6, 6), np.float32)}
    pipe = vp.from_cases([case] * 2).open_volume(labels=()).per_channel(Gamma((0.5, 2), p=0.7))
    first, second = (sample["image"] for sample in pipe)

    again = next(iter(pipe.replay(second.draws)))["image"]

    assert first.draws != second.draws
    assert np.array_equal(again.realize(), second.realize())
    bad = {"per_channel": {"channels": [None, {"gamma": -1.0}]}}
    with pytest.raises(BadRecord, match=r"channels\[1\]"):
        pipe.replay(bad)
    short = next(iter(pipe.replay({"per_channel": {"channels": [None]}})))["image"]
    with pytest.raises(BadRecord, match="not a list of 2"):
        short.realize()


def test_channels_in_a_choice() -> None:
    """A choice draws for as many channels as there are."""
    case = {"image": np.ones((3, 4, 4, 4), np.float32)}
    member = PerChannel(Brightness((0.5, 1.5)))
    pipe = vp.from_cases([case]).open_volume(labels=()).one_of([member])
    image = next(iter(pipe))["image"]

    assert len({float(v) for v in image.realize()[:, 0, 0, 0]}) == 3


def test_what_per_channel_takes_is_checked() -> None:
    """An op that keeps the channels, and no class."""
    with pytest.raises(ValueError, match="takes a value op"):
        PerChannel(3)
    with pytest.raises(ValueError, match="select_channels may not"):
        PerChannel(SelectChannels(0))
    with pytest.raises(ValueError, match="ends at 1 or above"):
        Contrast((0.5, 0.9), two_sided=True)


def test_regions_may_overlap() -> None:
    """The whole holds its core."""
    label = np.arange(4, dtype=np.int16).reshape(1, 2, 2)
    pipe = vp.from_cases([{"label": label}]).open_volume().regions(((1, 2, 3), (2, 3), 3))
    masks = next(iter(pipe))["label"].realize()

    assert masks.reshape(3, 4).tolist() == [[0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1]]


@pytest.mark.parametrize("op", [Normalize(), Rescale(), RescalePercentiles(), Normalize(above=0.2)])
@pytest.mark.parametrize("first", ["", "select", "stack", "clamp"])
def test_each_channel_has_its_own_statistics(tmp_path: Any, op: Any, first: str) -> None:
    """As each channel of a volume alone: after a choice, a stack, and an op on values."""
    scales = np.array([1, 10, 100], np.float32).reshape(3, 1, 1, 1)
    voxels = np.random.default_rng(0).random((3, 6, 5, 4), np.float32) * scales
    paths = [str(tmp_path / f"{number}.npy") for number in range(3)]
    for path, channel in zip(paths, voxels, strict=True):
        np.save(path, channel)
    np.save(tmp_path / "all.npy", voxels)
    case = {"image": str(tmp_path / "all.npy")}
    pipe = vp.from_cases([case]).open_volume(labels=())
    if first == "stack":
        every = dict(zip("abc", paths, strict=True))
        pipe = vp.from_cases([every]).open_volume(labels=()).stack(("a", "b", "c"), "image")
    kept = (2, 0) if first == "select" else (0, 1, 2)
    pipe = pipe.select_channels(kept) if first == "select" else pipe
    pipe = pipe.clamp(0, 50) if first == "clamp" else pipe

    found = next(iter(pipe.per_channel(op)))["image"].realize()

    for number, channel in enumerate(kept):
        alone = vp.from_cases([{"image": paths[channel]}]).open_volume(labels=())
        alone = alone.clamp(0, 50) if first == "clamp" else alone
        expected = next(iter(alone.per_channel(op)))["image"].realize()[0]
        np.testing.assert_allclose(found[number], expected, rtol=1e-5, atol=1e-5)
    if op == Normalize() and first != "clamp":
        np.testing.assert_allclose(found.mean((1, 2, 3)), 0, atol=1e-5)  # NumPy
        np.testing.assert_allclose(found.std((1, 2, 3)), 1, atol=1e-5)
