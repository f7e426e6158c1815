"""The stages of a plan besides its matrix: hard crops and displacements, and their order.

An output voxel begins at ``matrix @ index``, a place in the source, and passes the stages in
reverse order. A displacement moves the place. A clip makes the voxel fill if the place is outside.
All stages use source coordinates, so later ops do not change them.

In one pass the kernel does one displacement and any clips after it, both as functions of the output
index. :func:`kernel_stages` returns this form. Earlier stages are applied place by place: one
displacement by the kernel, more by NumPy.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core import Region
from ...core.affine3x4 import Affine3x4, matrix4x4
from ...core.lru_cache import cached_property
from ...core.validate import FieldChecks
from .pull_back import REACH, Matrix, Moves, coordinate, extremes

# A displacement field is a uniform cubic B-spline, computed on the fly by the resampler. Its values
# are weighted means of control points, which bound the field and the voxels to read.

Floats = NDArray[np.float64]


class _ByValue(FieldChecks):
    """Equality by value for classes with arrays."""

    def _value(self) -> tuple[Any, ...]:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByValue) and self._value() == other._value()

    def __hash__(self) -> int:
        return hash(self._value())


def _as_read_only(name: str, value: Any) -> Floats:
    # Adding zero turns -0.0 into 0.0, so that equal arrays have equal bytes.
    array: Floats = np.array(value, dtype=np.float64, order="C") + 0.0
    array.setflags(write=False)
    return array


@dataclass(frozen=True, eq=False, repr=False)
class Displacement(_ByValue):
    """A displacement field in source voxels."""

    control: Floats
    """(3, a, b, c) float64: displacement along each source axis, in source voxels. Point ``p`` is
    at control index ``p``; beyond the ends the last point repeats."""
    matrix: Matrix
    """4x4 float64 to the control grid's index, from that of the source (or of ``resample``'s
    out)."""

    checks: ClassVar[Any] = {"control": _as_read_only, "matrix": _as_read_only}

    def __repr__(self) -> str:
        """Return how many control points there are: a plan with all of them fills a screen."""
        return f"Displacement({' x '.join(map(str, self.control.shape[1:]))} control points)"

    def __post_init__(self) -> None:
        super().__post_init__()
        control, matrix = self.control, self.matrix
        if control.ndim != 4 or control.shape[0] != 3 or 0 in control.shape:
            msg = f"control points are (3, a, b, c) with a, b, c >= 1, got {control.shape}"
            raise ValueError(msg)
        if matrix.shape != (4, 4) or not np.isfinite(matrix).all():
            msg = f"the matrix of a displacement is a finite 4x4 matrix, got {self.matrix!r}"
            raise ValueError(msg)
        if not np.isfinite(control).all():
            raise ValueError("control points are finite, got infinity or NaN among them")

    @cached_property
    def bounds(self) -> Moves:
        """Return the bounds of the displacement, per source axis."""
        return _bounds(self.control)

    def bounds_between(self, lows: Sequence[float], highs: Sequence[float]) -> Moves:
        """Return the bounds of the displacement inside a box, per source axis."""
        # An affine map of a box, in the matrix's input, has its extremes row by row.
        parts = self.matrix[:3, :3] * np.array([lows, highs], dtype=np.float64)[:, None, :]
        low = parts.min(axis=0).sum(axis=1) + self.matrix[:3, 3]
        high = parts.max(axis=0).sum(axis=1) + self.matrix[:3, 3]
        inside = []
        for a, b, size in zip(low.tolist(), high.tolist(), self.control.shape[1:], strict=True):
            # One more than the four taps on either side, for rounding.
            first = math.floor(min(max(a, 0.0), size - 1.0)) - 2
            last = math.floor(min(max(b, 0.0), size - 1.0)) + 3
            inside.append(slice(max(first, 0), min(last, size - 1) + 1))
        return _bounds(self.control[(slice(None), *inside)])

    def after(self, matrix: Matrix) -> Displacement:
        """Return the field after ``matrix`` (4x4), in its input coordinates."""
        field = object.__new__(Displacement)  # the points are shared, they may be many
        product = _as_read_only("matrix", self.matrix @ matrix)
        field.__dict__.update(control=self.control, matrix=product)
        return field

    def move(self, across: Matrix, back: Matrix) -> Displacement:
        """Return the field in coordinates that ``across`` (4x4) maps to, ``back`` from."""
        points = np.tensordot(across[:3, :3], self.control, axes=1)
        return Displacement(points, self.matrix @ back)

    def at(self, index: Sequence[NDArray[np.int64]]) -> Floats:
        """Return the displacement, (3, ...) float64, of three broadcasting arrays of indices."""
        return self._at([coordinate(row, *index) for row in self.matrix[:3]])

    def at_places(self, places: Sequence[Floats]) -> Floats:
        """Return the displacement, (3, ...) float64, of three arrays of coordinates."""
        x, y, z = places
        return self._at([row[0] * x + row[1] * y + row[2] * z + row[3] for row in self.matrix[:3]])

    def _at(self, places: Sequence[Floats]) -> Floats:
        cells, weights = [], []
        for along, size in zip(places, self.control.shape[1:], strict=True):
            place = np.clip(along, 0, size - 1)
            cell = np.floor(place)
            weights.append(_weights(place - cell))
            taps = [np.clip(cell.astype(np.intp) + n - 1, 0, size - 1) for n in range(4)]
            cells.append(taps)
        total = np.zeros((3, *np.broadcast_shapes(*(place.shape for place in places))))
        # One index into the points of an axis, which NumPy looks up much faster than three.
        points = self.control.reshape(3, -1)
        _, rows, columns = self.control.shape[1:]
        for a, b in itertools.product(range(4), repeat=2):
            row = (cells[0][a] * rows + cells[1][b]) * columns
            across = weights[0][a] * weights[1][b]
            for c in range(4):
                place, weight = row + cells[2][c], across * weights[2][c]
                for axis in range(3):
                    total[axis] += weight * points[axis].take(place)
        return total

    def to_json(self) -> dict[str, Any]:
        """Return the field as plain data."""
        return {"control": self.control.tolist(), "matrix": self.matrix.tolist()}

    def _value(self) -> tuple[Any, ...]:
        return self.control.shape, self.control.tobytes(), self.matrix.tobytes()


def _bounds(control: Floats) -> Moves:
    return tuple((float(points.min()), float(points.max())) for points in control)


def _weights(t: Floats) -> list[Floats]:
    """Return the four weights of the uniform cubic B-spline at ``t`` within a cell."""
    s = 1 - t
    return [s**3 / 6, (3 * t**3 - 6 * t**2 + 4) / 6, (3 * s**3 - 6 * s**2 + 4) / 6, t**3 / 6]


@dataclass(frozen=True, eq=False)
class Clip(_ByValue):
    """A box in its own grid."""

    matrix: Matrix
    """4x4 float64 to the cropped grid's index, from that of the source (or of ``resample``'s
    out)."""
    shape: tuple[int, int, int]  # shape of the cropped grid

    checks: ClassVar[Any] = {"matrix": _as_read_only, "shape": lambda _, v: tuple(map(int, v))}

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.matrix.shape != (4, 4):
            raise ValueError(f"the matrix of a clip is 4x4, got {self.matrix.shape}")

    @classmethod
    def of_region(cls, region: Region) -> Clip:
        """Return a box of whole voxels."""
        x, y, z = region.start
        move = (1.0, 0.0, 0.0, -x, 0.0, 1.0, 0.0, -y, 0.0, 0.0, 1.0, -z)
        i, j, k = region.shape
        return cls(matrix4x4(move), (i, j, k))

    def move(self, across: Matrix, back: Matrix) -> Clip:
        """Return the box in other coordinates, from which ``back`` (4x4) maps here."""
        return self.after(back)

    def after(self, matrix: Matrix) -> Clip:
        """Return the clip after ``matrix`` (4x4), in its input coordinates."""
        return Clip(self.matrix @ matrix, self.shape)

    def to_json(self) -> dict[str, Any]:
        """Return the clip as plain data."""
        return {"matrix": self.matrix.tolist(), "shape": list(self.shape)}

    def _value(self) -> tuple[Any, ...]:
        return self.shape, self.matrix.tobytes()


Stage = Clip | Displacement

KERNEL_DISPLACEMENTS = 2
"""Most displacements of one plan that the kernel does."""
BY_NUMPY = (
    "the kernel does two displacements in one plan, and no hard crop before one; NumPy, which does "
    "this, takes some 70 times as long (2.8 s instead of 0.04 s for 96x96x96 on one core), so "
    "leave one out, or put flush() before the last one, for an interpolation more"
)
"""Effect and cure of a plan that is not for the kernel."""


class KernelStages(NamedTuple):
    """Stages as ``resample`` takes them."""

    clips: tuple[Clip, ...] = ()  # boxes of the output index
    displacement: Displacement | None = None  # A field of the output index
    earlier: tuple[Stage, ...] = ()  # earlier stages, of the source index

    @property
    def is_for_kernel(self) -> bool:
        """Whether the kernel does it: no earlier stage, or one displacement."""
        return not self.earlier or (
            len(self.earlier) < KERNEL_DISPLACEMENTS and isinstance(self.earlier[0], Displacement)
        )


NO_STAGES = KernelStages()


def kernel_stages(stages: Sequence[Stage], matrix: Matrix) -> KernelStages:
    """Return the stages of a plan with a pull-back ``matrix`` (4x4) for the resampler."""
    clips: list[Clip] = []
    for number, stage in reversed(list(enumerate(stages))):
        if isinstance(stage, Displacement):
            return KernelStages(tuple(clips), stage.after(matrix), tuple(stages[:number]))
        clips.insert(0, stage.after(matrix))
    return KernelStages(tuple(clips))


def displacement_bounds(rows: Affine3x4, shape: Sequence[int], stages: KernelStages) -> Moves:
    """Return how far displacements may move any place of an output, per source axis."""
    # Only control points within reach of the output count, for patches of a deformed volume.
    if stages.displacement is None or 0 in shape:
        return ()
    moves = stages.displacement.bounds_between((0, 0, 0), [n - 1 for n in shape])
    lows, highs = extremes(rows, shape)
    for stage in reversed(stages.earlier):
        if isinstance(stage, Displacement):
            bounds = stage.bounds_between(
                [low + move for low, (move, _) in zip(lows, moves, strict=True)],
                [high + move for high, (_, move) in zip(highs, moves, strict=True)],
            )
            moves = tuple((a + c, b + d) for (a, b), (c, d) in zip(moves, bounds, strict=True))
    return moves


def pull_back_points(
    places: Sequence[Floats], stages: Sequence[Stage]
) -> tuple[list[Floats], NDArray[np.bool_] | None]:
    """Return where places lead through stages, the last one first, and which a clip left out."""
    # Places are three arrays of one shape; they and the stages are in source coordinates.
    outside: NDArray[np.bool_] | None = None
    x, y, z = places
    for stage in reversed(stages):
        if isinstance(stage, Clip):
            for (a, b, c, t), size in zip(stage.matrix[:3], stage.shape, strict=True):
                along = a * x + b * y + c * z + t
                beyond = (along < -REACH) | (along > size - 1 + REACH)
                outside = beyond if outside is None else outside | beyond
        else:
            dx, dy, dz = stage.at_places((x, y, z))
            x, y, z = x + dx, y + dy, z + dz
    return [x, y, z], outside
