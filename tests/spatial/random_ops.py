"""Random ops of every kind, for grids of 2-D and 3-D data."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from hypothesis import strategies as st

import voxpipe.datapipes.iter  # noqa: F401  makes the chained forms
from voxpipe.core import Grid, Region
from voxpipe.datapipes.iter import SpatialPipe
from voxpipe.spatial import (
    Affine,
    Augment,
    CenterCrop,
    Choices,
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
    RandomOrder,
    ResampleTo,
    Resize,
    Rotate,
    Rotate90,
    Shear,
    SomeOf,
    Spacing,
    SpatialOp,
    SpatialPlan,
    ToAxes,
    Translate,
    Transpose,
    UniformPatch,
    Zoom,
)
from voxpipe.spatial.ops.choices import SpatialChoice

Draw = Callable[[Any], Any]

spaces = st.sampled_from(["world", "voxel"])
flags = st.booleans()
sides = st.sampled_from(["end", "start", "center"])
chances = st.sampled_from([1.0, 1.0, 1.0, 0.5])
EXTENTS = st.sampled_from(["edges", "centers"])


def around(reach: float) -> st.SearchStrategy[tuple[float, ...]]:
    """Three numbers up to ``reach`` on either side of zero."""
    return st.tuples(*[st.floats(-reach, reach)] * 3)


factors = st.tuples(*[st.floats(0.6, 1.7)] * 3)


def _box(draw: Draw, grid: Grid) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Start and size of a box in the grid; axes of one voxel keep it, others keep two."""
    start = [draw(st.integers(0, max(min(3, n - 2), 0))) for n in grid.shape]
    size = [draw(st.integers(min(2, n), n - a)) for a, n in zip(start, grid.shape, strict=True)]
    return tuple(start), tuple(size)


def _size(draw: Draw, grid: Grid, most: int = 12) -> tuple[int, ...]:
    return tuple(1 if n == 1 else draw(st.integers(2, most)) for n in grid.shape)


def _elastic(draw: Draw, grid: Grid) -> SpatialOp:
    space = draw(spaces)
    unit = max(grid.spacing) if space == "world" else 1.0
    spacing = draw(st.floats(2, 8)) * unit
    amount = draw(st.floats(0, 0.35)) * spacing
    return Elastic((0, amount), spacing, draw(st.integers(0, 2)), space, draw(chances))


def _affine(draw: Draw, grid: Grid) -> SpatialOp:
    matrix = np.eye(4)
    matrix[:3, :3] = np.diag(draw(factors)) + 0.1 * np.reshape([draw(around(1))] * 3, (3, 3))
    matrix[:3, 3] = draw(around(3))
    shape = _size(draw, grid) if draw(flags) else None
    return Affine(matrix, draw(spaces), shape, 1.0 if shape else draw(chances))


def _resample_to(draw: Draw, grid: Grid) -> SpatialOp:
    flat = [n == 1 for n in grid.shape]
    steps = [1.0 if one else f for one, f in zip(flat, draw(factors), strict=True)]
    step = np.diag([*steps, 1.0])
    step[:3, 3] = [0.0 if one else t for one, t in zip(flat, draw(around(2)), strict=True)]
    return ResampleTo(Grid(_size(draw, grid), grid.affine @ step))


def _orientation(draw: Draw, grid: Grid) -> SpatialOp:
    letters = draw(st.permutations([draw(st.sampled_from(pair)) for pair in ("RL", "AP", "SI")]))
    return Orientation("".join(letters))


def _pad(draw: Draw, grid: Grid) -> SpatialOp:
    if draw(flags):
        where = draw(st.sampled_from(["both", "end"]))
        return Pad(size=_size(draw, grid), sides=where)
    amounts = [
        (0, 0) if n == 1 else draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
        for n in grid.shape
    ]
    return Pad(amounts)


def _random_crop(draw: Draw, grid: Grid) -> SpatialOp:
    low = [min(2, n) for n in grid.shape]
    size = tuple((a, draw(st.integers(a, n))) for a, n in zip(low, grid.shape, strict=True))
    return RandomCrop(size, center=draw(flags), hard=draw(flags))


class DecidedForeground(ForegroundCrop):
    """One that was told where the foreground is; in chains its pipe asks the volume."""

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Any:
        """Return the crop to a random box."""
        return self.decide(_some_box(generator, plan), plan, "a volume")


class DecidedLabel(LabelCrop):
    """One that was told where its label is."""

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Any:
        """Return the crop about a random box."""
        return self.decide(_some_box(generator, plan), plan, "a volume")


def _some_box(generator: np.random.Generator, plan: SpatialPlan) -> Region:
    start = [int(generator.integers(0, max(1, n - 1))) for n in plan.shape]
    stop = [
        int(generator.integers(min(a + 2, n), n + 1))
        for a, n in zip(start, plan.shape, strict=True)
    ]
    return Region(tuple(start), tuple(stop))


def _turn90(draw: Draw, grid: Grid) -> SpatialOp:
    axes = draw(st.sampled_from([(0, 1), (2, 0), (1, 2)]))
    return Rotate90(draw(st.integers(-3, 3)), axes, draw(chances))


LATTICE: dict[type, Callable[[Draw, Grid], SpatialOp]] = {
    Crop: lambda draw, grid: Crop(*_box(draw, grid), hard=draw(flags)),
    CenterCrop: lambda draw, grid: CenterCrop(
        _box(draw, grid)[1], hard=draw(flags), side=draw(sides)
    ),
    CropOrPad: lambda draw, grid: CropOrPad(_size(draw, grid), hard=draw(flags), side=draw(sides)),
    DivisiblePad: lambda draw, grid: DivisiblePad(
        draw(st.integers(1, 4)), side=draw(st.sampled_from(["end", "start"]))
    ),
    FixedPatch: lambda draw, grid: FixedPatch(*_box(draw, grid)),
    ForegroundCrop: lambda draw, grid: DecidedForeground(
        margin=draw(st.integers(0, 2)),
        divisible=draw(st.integers(1, 3)),
        overhang=draw(flags),
        hard=draw(flags),
    ),
    LabelCrop: lambda draw, grid: DecidedLabel(_size(draw, grid), hard=draw(flags)),
    Flip: lambda draw, grid: Flip(
        draw(st.lists(st.sampled_from([0, 1, 2]), min_size=1, unique=True)), draw(chances)
    ),
    Orientation: _orientation,
    Pad: _pad,
    RandomCrop: _random_crop,
    Rotate90: _turn90,
    ToAxes: lambda draw, grid: ToAxes("xyz") if grid.axes == "xyz" else Flip(0),
    Transpose: lambda draw, grid: Transpose(draw(st.permutations([0, 1, 2]))),
    UniformPatch: lambda draw, grid: UniformPatch(_box(draw, grid)[1]),
}
MOVING: dict[type, Callable[[Draw, Grid], SpatialOp]] = {
    Affine: _affine,
    Augment: lambda draw, grid: Augment(
        draw(around(30)),
        draw(factors),
        draw(around(2)),
        draw(around(0.3)),
        flip=0.5,
        space=draw(spaces),
        p=draw(chances),
    ),
    Elastic: _elastic,
    GridDistortion: lambda draw, grid: GridDistortion(
        draw(st.floats(0, 0.4)), draw(st.integers(1, 3)), p=draw(chances)
    ),
    ResampleTo: _resample_to,
    Resize: lambda draw, grid: Resize(_size(draw, grid), extent=draw(EXTENTS)),
    Rotate: lambda draw, grid: Rotate(
        draw(around(180)),
        draw(spaces),
        draw(flags),
        draw(chances),
        draw(st.sampled_from(["forward", "backward"])),
    ),
    Shear: lambda draw, grid: Shear(draw(around(0.5)), draw(spaces), draw(chances)),
    Spacing: lambda draw, grid: Spacing(
        tuple(
            None if n == 1 else s * f
            for n, s, f in zip(grid.shape, grid.spacing, draw(factors), strict=True)
        ),
        draw(EXTENTS),
    ),
    Translate: lambda draw, grid: Translate(draw(around(4)), draw(spaces), draw(chances)),
    Zoom: lambda draw, grid: Zoom(draw(factors), draw(spaces), draw(flags), draw(chances)),
}


def chained_ops() -> list[type]:
    """Return the spatial ops that have a chained form."""
    found: list[type] = []
    kinds: list[type] = [SpatialPipe]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        made = kind.__dict__.get("op_class")
        if made is not None and kind.__module__.startswith("voxpipe."):
            found.append(made)
    return sorted(set(found), key=lambda op: op.__name__)


# What is tried for the required arguments of an op that has no line of its own above.
_GUESSES: tuple[Any, ...] = (0.3, 2, (2, 2, 2), (4, 4, 4), "RAS", np.eye(4))


def guessed(op: type) -> Callable[[Draw, Grid], SpatialOp]:
    """Return what makes a new op: with the first of some arguments that it takes."""
    for count in (0, 1, 2):
        for arguments in itertools.product(_GUESSES, repeat=count):
            try:
                made = op(*arguments)
            except (TypeError, ValueError):
                continue
            return lambda draw, grid, made=made: made  # type: ignore[misc]
    raise AssertionError(f"say in {__name__} how a random {op.__name__} is made")


def _choice(draw: Draw, grid: Grid) -> SpatialOp:
    """Some of several ops, which may be chains and choices themselves."""
    makers = [*MOVING.values(), LATTICE[Flip], LATTICE[Orientation], LATTICE[Pad]]
    ops: list[Any] = [draw(st.sampled_from(makers))(draw, grid) for _ in range(3)]
    inner = RandomOrder(ops[1:]) if draw(flags) else ops[1:]
    made = {
        "one": lambda: OneOf([ops[0], inner]),
        "some": lambda: SomeOf(ops, (1, 3)),
        "order": lambda: RandomOrder([ops[0], inner] if isinstance(inner, Choices) else ops),
        "apply": lambda: RandomApply([ops[0], *ops[1:]]),
    }
    found = made[draw(st.sampled_from(sorted(made)))]().spatial
    assert found is not None
    return found


def every_op() -> dict[type, Callable[[Draw, Grid], SpatialOp]]:
    """Return what makes a random op of each kind there is."""
    known = {**LATTICE, **MOVING}
    new = {op: guessed(op) for op in chained_ops() if op not in known}
    return {**known, **new, SpatialChoice: _choice}


def lattice_ops() -> dict[type, Callable[[Draw, Grid], SpatialOp]]:
    """Return what makes a random op that moves whole voxels only."""
    return {op: make for op, make in every_op().items() if op.lattice is True}  # type: ignore[attr-defined]


@st.composite
def grids(draw: Draw) -> Grid:
    """Oblique grids with voxels of different lengths, right- and left-handed, some of them 2-D."""
    turn = np.linalg.qr(np.random.default_rng(draw(st.integers(0, 99))).normal(size=(3, 3)))[0]
    affine = np.eye(4)
    affine[:3, :3] = turn @ np.diag(draw(st.tuples(*[st.floats(0.5, 4)] * 3)))
    affine[:3, 3] = draw(around(500))
    i, j, k = (draw(st.integers(2, 11)) for _ in range(3))
    return Grid((i, j, 1 if draw(st.integers(0, 3)) == 0 else k), affine)
