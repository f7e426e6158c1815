"""Every argument of every value op: nonsense fails at construction, with what is allowed."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

import voxpipe.intensity as values
from voxpipe.intensity import (
    Anisotropy,
    BiasField,
    Blur,
    Brightness,
    Clamp,
    Contrast,
    DropBoxes,
    DropChannels,
    DropComponent,
    Gamma,
    LowResolution,
    MapValues,
    MeanOfChannels,
    Noise,
    Normalize,
    OneHot,
    PerChannel,
    RandomMorphology,
    Regions,
    RemapLabels,
    Rescale,
    RescalePercentiles,
    RicianNoise,
    SelectChannels,
    Sharpen,
    ValueOp,
)
from voxpipe.spatial import MaskedPatch, Policy
from voxpipe.volumes import Volume

GOOD = [
    Anisotropy(2),
    BiasField(0.3),
    Blur(1),
    Brightness(1),
    Clamp(0, 1),
    Contrast(2),
    DropBoxes(2, 0.1),
    DropChannels(0.5),
    DropComponent(0.1),
    Gamma(2),
    LowResolution(2),
    MapValues(np.tanh),
    MeanOfChannels(),
    Noise(1),
    Normalize(1, 2, above=0, inside="label"),
    OneHot(3),
    PerChannel(Noise(1)),
    RandomMorphology(1),
    Regions((1, (1, 2))),
    RemapLabels({1: 2}, 0),
    Rescale(),
    RescalePercentiles(1, 99, above=0, inside="label"),
    RicianNoise(1),
    SelectChannels(0),
    Sharpen(1),
]
NONSENSE: dict[str, Any] = {
    "nan": math.nan,
    "infinity": math.inf,
    "a word": "nonsense",
    "an empty word": "",
    "an object": object(),
    "four": (1, 2, 3, 4),
    "backwards": (2, 1),
    "nothing": (),
    "complex": 1j,
    "a bool": np.array(True),
    "a cube": np.full((2, 2, 2), np.nan),
}
# Nonsense for most: any word is the name of a volume, and some take several whole numbers.
SENSE = {
    *((op, "inside", "a word") for op in (Normalize, RescalePercentiles)),
    (OneHot, "classes", "four"),
    (OneHot, "classes", "backwards"),
    (SelectChannels, "indices", "a word"),
    (SelectChannels, "indices", "four"),
    (SelectChannels, "indices", "backwards"),
    (Anisotropy, "axes", "backwards"),
    (LowResolution, "axes", "backwards"),
    (Regions, "classes", "backwards"),
    (Regions, "classes", "four"),
    (Rescale, "out_range", "backwards"),
    (RescalePercentiles, "out_range", "backwards"),
}

ARGUMENTS = [
    pytest.param(op, field.name, id=f"{type(op).__name__}.{field.name}")
    for op in GOOD
    for field in dataclasses.fields(op)
]


def test_every_op_is_in_the_table() -> None:
    """Whoever adds one adds its arguments."""
    ops = {
        op
        for op in vars(values).values()
        if isinstance(op, type) and issubclass(op, ValueOp) and op.name
    }

    assert {type(op) for op in GOOD} == ops


@pytest.mark.parametrize(("op", "field"), ARGUMENTS)
def test_nonsense_is_refused_with_what_is_allowed(op: Any, field: str) -> None:
    """The message says what came, and is not one of Python's or NumPy's own."""
    wrong = {}
    for kind, value in NONSENSE.items():
        try:
            dataclasses.replace(op, **{field: value})
            is_right, answer = (type(op), field, kind) in SENSE, "no error"
        except (ValueError, TypeError) as error:
            answer = str(error)
            is_right = "got " in answer and (type(op), field, kind) not in SENSE
        if not is_right:
            wrong[kind] = answer

    assert wrong == {}


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Normalize(mean="x"), "mean is a finite number or None, got 'x'"),
        (lambda: Normalize(above=True), "above is a finite number or None, got True"),
        (lambda: Normalize(std=-1), "std is a number >= 0 or None, got -1"),
        (lambda: Clamp("a"), "low is a finite number or None, got 'a'"),
        (lambda: Clamp(math.inf), "low is a finite number or None, got inf"),
        (lambda: Clamp(2, 1), "low <= high"),
        (lambda: RescalePercentiles("a"), "lower is a finite number, got 'a'"),
        (lambda: RescalePercentiles(99, 1), "0 <= lower < upper <= 100, got 99, 1"),
        (lambda: DropBoxes(2, 0.1, fill=math.nan), "fill is a finite number, got nan"),
        (lambda: DropChannels(0.1, fill="x"), "fill is a finite number, got 'x'"),
        (lambda: Gamma(1, in_range=(1, 0)), "in_range is a range .* low < high, got \\(1, 0\\)"),
        (lambda: Rescale(in_range=(1, 0)), "low < high, got \\(1, 0\\)"),
        (lambda: MaskedPatch((4,) * 3, MASK, min_fraction="a"), "from 0 to 1, got 'a'"),
        (lambda: MaskedPatch((4,) * 3, MASK, min_fraction=True), "from 0 to 1, got True"),
        (lambda: MaskedPatch((4,) * 3, MASK, min_fraction=math.nan), "from 0 to 1, got nan"),
        (
            lambda: MaskedPatch((4,) * 3, MASK, class_weights=[1, 1]),
            "to weights from 0, got .1, 1.",
        ),
        (
            lambda: MaskedPatch((4,) * 3, MASK, class_weights={"a": 1}),
            "to weights from 0, got {'a': 1}",
        ),
        (
            lambda: MaskedPatch((4,) * 3, MASK, class_weights={0: "a"}),
            "to weights from 0, got {0: 'a'}",
        ),
        (lambda: MaskedPatch((4,) * 3, MASK, class_weights=7), "to weights from 0, got 7"),
        (lambda: Policy(fill=math.nan, dtype=np.dtype(np.int16)), "fill=nan .* int16"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_is_refused_with_what_can(make: Any, message: str) -> None:
    """Backwards, infinite, of another type: the message has the allowed values."""
    with pytest.raises(ValueError, match=message):
        make()


MASK = Volume(np.ones((8, 8, 8), np.uint8), kind="label")
