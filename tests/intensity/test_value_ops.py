"""Every value op keeps the contract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from voxpipe.intensity import (
    Anisotropy,
    BiasField,
    Blur,
    Brightness,
    Clamp,
    Contrast,
    DropBoxes,
    DropChannels,
    Facts,
    Gamma,
    LowResolution,
    MapValues,
    MeanOfChannels,
    Noise,
    Normalize,
    OneHot,
    Params,
    RemapLabels,
    Rescale,
    RescalePercentiles,
    RicianNoise,
    SelectChannels,
    Sharpen,
    ValueOp,
)
from voxpipe.testing import ValueOpContract


class TestNormalize(ValueOpContract):
    def make(self) -> ValueOp:
        return Normalize()

    def make_nothing(self) -> ValueOp | None:
        return Normalize(0, 1)


class TestNormalizeInside(ValueOpContract):
    def make(self) -> ValueOp:
        return Normalize(inside="seg", above=1)

    def make_nothing(self) -> ValueOp | None:
        return Normalize(0, 1)


class TestRescale(ValueOpContract):
    def make(self) -> ValueOp:
        return Rescale((-1, 1))

    def make_nothing(self) -> ValueOp | None:
        return Rescale((0, 4), (0, 4))


class TestRescalePercentiles(ValueOpContract):
    def make(self) -> ValueOp:
        return RescalePercentiles(30, 70)

    def make_nothing(self) -> ValueOp | None:
        return RescalePercentiles(0, 100, (0, 4))


class TestClamp(ValueOpContract):
    def make(self) -> ValueOp:
        return Clamp(1, 3)

    def make_nothing(self) -> ValueOp | None:
        return Clamp(low=0)


class TestGamma(ValueOpContract):
    def make(self) -> ValueOp:
        return Gamma((0.5, 0.8))

    def make_nothing(self) -> ValueOp | None:
        return Gamma(1)


class TestBrightness(ValueOpContract):
    def make(self) -> ValueOp:
        return Brightness((-0.5, 0.8), (1, 2))

    def make_nothing(self) -> ValueOp | None:
        return Brightness()


class TestContrast(ValueOpContract):
    def make(self) -> ValueOp:
        return Contrast((1.2, 2), keep_range=True)

    def make_nothing(self) -> ValueOp | None:
        return Contrast(1)


class TestNoise(ValueOpContract):
    def make(self) -> ValueOp:
        return Noise((0.1, 0.2), 1)

    def make_nothing(self) -> ValueOp | None:
        return Noise(0)


class TestRicianNoise(ValueOpContract):
    def make(self) -> ValueOp:
        return RicianNoise(0.5)

    def make_nothing(self) -> ValueOp | None:
        return RicianNoise(0)


class TestBlur(ValueOpContract):
    def make(self) -> ValueOp:
        return Blur((0.8, 1))

    def make_nothing(self) -> ValueOp | None:
        return Blur(0)


class TestSharpen(ValueOpContract):
    def make(self) -> ValueOp:
        return Sharpen((0.5, 0.8), "voxel", (1, 2))

    def make_nothing(self) -> ValueOp | None:
        return Sharpen(1, amount=0)


class TestBiasField(ValueOpContract):
    def make(self) -> ValueOp:
        return BiasField(0.4)

    def make_nothing(self) -> ValueOp | None:
        return BiasField(0)


class TestLowResolution(ValueOpContract):
    def make(self) -> ValueOp:
        return LowResolution((1.5, 2.5))

    def make_nothing(self) -> ValueOp | None:
        return LowResolution(1)


class TestAnisotropy(ValueOpContract):
    def make(self) -> ValueOp:
        return Anisotropy((1.5, 2.5))

    def make_nothing(self) -> ValueOp | None:
        return Anisotropy(1)


class TestDropBoxes(ValueOpContract):
    def make(self) -> ValueOp:
        return DropBoxes((2, 4), 0.2, fill=-1)

    def make_nothing(self) -> ValueOp | None:
        return DropBoxes(3, 0)


class TestSelectChannels(ValueOpContract):
    def make(self) -> ValueOp:
        return SelectChannels((1, 0, 1))

    def make_nothing(self) -> ValueOp | None:
        return SelectChannels((0, 1))


class TestDropChannels(ValueOpContract):
    def make(self) -> ValueOp:
        return DropChannels(0.9, fill=9)

    def make_nothing(self) -> ValueOp | None:
        return DropChannels(0)


class TestMeanOfChannels(ValueOpContract):
    def make(self) -> ValueOp:
        return MeanOfChannels()

    def make_nothing(self) -> ValueOp | None:
        return None


@dataclass(frozen=True)
class Invert(ValueOp):
    """An op of a user's own, as in docs/values.md."""

    name: ClassVar[str] = "invert"
    pointwise: ClassVar[bool] = True

    def apply(self, array: NDArray[Any], drawn: Params, facts: Facts) -> NDArray[Any]:
        """Take each value from the largest one."""
        inverted: NDArray[Any] = np.subtract(facts.statistics().maximum, array, out=array)
        return inverted

    def describe(self) -> str:
        """One word."""
        return "invert"


class TestInvert(ValueOpContract):
    def make(self) -> ValueOp:
        return Invert()

    def make_nothing(self) -> ValueOp | None:
        return None


class Labelled(ValueOpContract):
    SHAPE = (1, 15, 12, 11)

    def values(self) -> NDArray[Any]:
        return super().values().astype(np.uint8)


class TestOneHot(Labelled):
    def make(self) -> ValueOp:
        return OneHot(5)

    def make_nothing(self) -> ValueOp | None:
        return None


class TestRemapLabels(Labelled):
    def make(self) -> ValueOp:
        return RemapLabels({1: 300, 2: 0}, unknown=1)

    def make_nothing(self) -> ValueOp | None:
        return RemapLabels({1: 1})


class TestMapValues(ValueOpContract):
    def make(self) -> ValueOp:
        return MapValues(np.negative)

    def make_nothing(self) -> ValueOp | None:
        return MapValues(np.positive)
