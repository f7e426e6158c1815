"""Every argument of every spatial op: nonsense fails at construction, with what is allowed."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from random_ops import chained_ops, guessed

import voxpipe as vp
from voxpipe.core import Grid
from voxpipe.core.errors import PolicyConflict, VoxpipeError
from voxpipe.spatial import (
    Affine,
    Augment,
    CenterCrop,
    Crop,
    CropOrPad,
    DivisiblePad,
    Elastic,
    FixedPatch,
    Flip,
    ForegroundCrop,
    GridDistortion,
    LabelCrop,
    OneOf,
    Orientation,
    Pad,
    RandomApply,
    RandomCrop,
    ResampleTo,
    Resize,
    Rotate,
    Rotate90,
    Shear,
    SomeOf,
    Spacing,
    Translate,
    UniformPatch,
    UniformRegion,
    Zoom,
)

GRID = Grid((4, 4, 4), np.eye(4))
GOOD = {
    type(op): op
    for op in (
        Affine(np.eye(4)),
        Augment(rotate=5),
        CenterCrop(4),
        Crop((0, 0, 0), (2, 2, 2)),
        CropOrPad(4),
        DivisiblePad(4),
        Elastic(1),
        FixedPatch((0, 0, 0), (2, 2, 2)),
        Flip(0),
        ForegroundCrop(classes=1),
        GridDistortion(),
        LabelCrop(4),
        Orientation("RAS"),
        Pad(1),
        RandomCrop(4),
        ResampleTo(GRID),
        Resize(4),
        Rotate(5),
        Rotate90(1),
        Shear(0.1),
        Spacing(1.0),
        Translate(1),
        UniformPatch((2, 2, 2)),
        UniformRegion((8, 8, 8), (2, 2, 2), (2, 2, 2)),
        Zoom(1.1),
    )
}
NONSENSE: dict[str, Any] = {
    "nan": math.nan,
    "three nan": (math.nan,) * 3,
    "infinity": math.inf,
    "a word": "nonsense",
    "an object": object(),
    "four": (1, 2, 3, 4),
    "nothing": (),
    "complex": 1j,
    "a cube": np.full((2, 2, 2), np.nan),
}


def every_op() -> list[Any]:
    """One good op of each kind, new ones as their first arguments make them."""
    new = [guessed(op)(None, GRID) for op in chained_ops() if op not in GOOD]  # type: ignore[arg-type]
    return [*GOOD.values(), *new]


ARGUMENTS = [
    pytest.param(op, field.name, id=f"{type(op).__name__}.{field.name}")
    for op in every_op()
    for field in dataclasses.fields(op)
    if field.name != "origin"  # ours, not the user's
]
# Nonsense for most, but any word is the name of a volume, and any whole numbers are labels.
SENSE = {("key", "a word"), ("classes", "four")}


@pytest.mark.parametrize(("op", "field"), ARGUMENTS)
def test_nonsense_is_refused_with_what_is_allowed(op: Any, field: str) -> None:
    """The message says what came, and is not one of Python's or NumPy's own."""
    wrong = {}
    for kind, value in NONSENSE.items():
        try:
            dataclasses.replace(op, **{field: value})
            is_right, answer = (field, kind) in SENSE, "no error"
        except (ValueError, TypeError) as error:
            answer = str(error)
            is_right = "got " in answer and (field, kind) not in SENSE
        if not is_right:
            wrong[kind] = answer

    assert wrong == {}


SINGULAR = np.array([[1, 2, 3, 0], [2, 4, 6, 0], [0.1, 0.7, 1, 0], [0, 0, 0, 1]])
NEARLY = SINGULAR.copy()
NEARLY[1, 2] += 1e-15


@pytest.mark.parametrize(
    ("make", "message"),
    [
        pytest.param(lambda: Affine(SINGULAR), "has an inverse, got", id="singular"),
        pytest.param(lambda: Affine(NEARLY), "has an inverse, got", id="singular but for rounding"),
        pytest.param(
            lambda: Affine(np.diag([1, 1, 1, 2])), "ends in the row 0 0 0 1", id="perspective"
        ),
        pytest.param(lambda: Zoom(-1), "factor takes numbers above 0, got -1", id="negative zoom"),
        pytest.param(lambda: Zoom((0.5, 0)), "low <= high|above 0", id="zoom to nothing"),
        pytest.param(
            lambda: Augment(zoom=(-1, 1)), "zoom takes numbers above 0", id="bundled zoom"
        ),
        pytest.param(lambda: Spacing(-1), "spacing takes numbers above 0", id="negative spacing"),
        pytest.param(
            lambda: Elastic(5, spacing=10), "can fold; allowed is less than 0.403", id="folding"
        ),
        pytest.param(
            lambda: Elastic((-9, 1), spacing=10), "at least 0, got", id="folding below zero"
        ),
        pytest.param(
            lambda: Orientation("RAX"), "one of L and R, one of P and A, one of I", id="axis code"
        ),
        pytest.param(lambda: Rotate(5, space="scanner"), "one of 'world', 'voxel'", id="space"),
        pytest.param(lambda: Resize(4, extent="corners"), "'edges', 'centers'", id="extent"),
        pytest.param(lambda: OneOf([]), "at least one op", id="no choice"),
        pytest.param(lambda: OneOf([Flip(0)], weights=[math.nan]), "at least 0", id="weight"),
        pytest.param(lambda: SomeOf([Flip(0)], 2), "from 0 to 1, got", id="count"),
        pytest.param(lambda: RandomApply([Flip(0)], p=1.5), "from 0 to 1, got 1.5", id="chance"),
        pytest.param(lambda: OneOf([Flip]), "ops such as Rotate", id="class for op"),
        pytest.param(lambda: OneOf(["flip"]), "ops such as Rotate", id="name for op"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(make: Any, message: str) -> None:
    """Singular, folding, negative, unknown: the message has the allowed values."""
    with pytest.raises(ValueError, match=message):
        make()


def opened() -> Any:
    return vp.from_cases([{"image": np.zeros((8, 8, 8)), "label": np.zeros((8, 8, 8), np.uint8)}])


@pytest.mark.parametrize(
    ("chain", "message"),
    [
        (lambda p: p.rotate(math.nan), r"finite numbers, got nan"),
        (lambda p: p.zoom(-1), r"above 0, got -1"),
        (lambda p: p.affine(SINGULAR), r"has an inverse"),
        (lambda p: p.elastic(20), r"can fold; .*spacing > 49.6"),
        (lambda p: p.orientation("XYZ"), r"one of L and R"),
        (lambda p: p.rotate(5, mode="bilinear"), r"'linear', 'nearest', 'cubic', got 'bilinear'"),
        (lambda p: p.rotate(5, padding="edge"), r"'border', 'reflection', .* got 'edge'"),
        (lambda p: p.rotate(5, padding={"label": "edge"}), r"'border', .* got 'edge'"),
        (lambda p: p.rotate(5, fill="white"), r"fill is a number, got 'white'"),
        (lambda p: p.rotate(5, dtype="word"), r"dtype is an integer or float type.*got 'word'"),
        (lambda p: p.rotate(5, dtype=bool), r"an integer or float type, got"),
        (lambda p: p.rotate(5, antialias="no"), r"antialias is False, True or 'level'"),
        (lambda p: p.rotate(5, mode="nearest", antialias=True), r"mode='nearest' does not"),
    ],
)
def test_a_pipe_refuses_where_it_is_written(chain: Any, message: str) -> None:
    """At construction of the chain: no sample is made, no header read."""
    pipe = opened().open_volume()

    with pytest.raises(ValueError, match=message):
        chain(pipe)


def test_policies_that_conflict_are_refused_at_both_places() -> None:
    """For all intensities and by key; saying the same twice is fine."""
    pipe = opened().open_volume().rotate(5, padding="reflection", mode={"label": "linear"})

    with pytest.raises(PolicyConflict, match=r"padding='zeros' here, .*'reflection' at .*rotate"):
        pipe.zoom(2, padding="zeros")
    with pytest.raises(PolicyConflict, match=r"mode='nearest' here, but mode='linear' at"):
        pipe.one_of([Flip(0)], mode={"label": "nearest"})
    assert issubclass(PolicyConflict, VoxpipeError)
    pipe.zoom(2, padding="reflection", mode={"label": "linear"})
