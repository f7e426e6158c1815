"""A frozen description of spatial work not yet done: where every output voxel comes from.

A chain of ops composes to one pull-back matrix, ``M = P1 @ P2 @ ... @ Pn``, so the shape and the
affine of a plan are always those of its *output*. Only affine maps; a displacement stage would be
a further field.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import Grid, OrientedBox, Region
from ..core.rows import IDENTITY, Rows, as_rows, composed, matrix_of, moved
from .policy import INTENSITY, Policy
from .pull_back import Matrix, extremes, source_box, touched, whole_rows

Shape = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Clip:
    """A hard crop made after an interpolating op: outside its box the output is fill."""

    matrix: Matrix
    """4x4 float64: output index to index of the cropped grid."""
    shape: Shape
    """Shape of the cropped grid."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "matrix", _frozen(self.matrix))
        object.__setattr__(self, "shape", _shape(self.shape))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Clip):
            return NotImplemented
        return self.shape == other.shape and bool(np.array_equal(self.matrix, other.matrix))

    def __hash__(self) -> int:
        return hash((self.shape, self.matrix.tobytes()))


@dataclass(frozen=True, eq=False)
class SpatialPlan:
    """Where every output voxel comes from.

    Examples
    --------
    >>> plan = SpatialPlan.identity(Grid((10, 10, 10), np.diag([1.0, 1.0, 2.0, 1.0])))
    >>> patch = plan.crop((2, 3, 4), (4, 4, 4))
    >>> patch.shape, patch.affine[:3, 3].tolist()
    ((4, 4, 4), [2.0, 3.0, 8.0])
    >>> patch.source_region()
    Region(2:6, 3:7, 4:8)
    >>> print(patch.explain())
    4x4x4 from 10x10x10: copy of 2:6, 3:7, 4:8

    A changed copy; ``matrix=`` may be given, too:

    >>> from dataclasses import replace
    >>> replace(patch, shape=(4, 4, 2)).source_region()
    Region(2:6, 3:7, 4:6)
    """

    source: Grid
    """Grid of the stored volume."""
    rows: Rows
    """The pull-back as plain floats, row by row; given as a matrix of 4x4."""
    shape: Shape
    """Shape (I, J, K) of the output."""
    bounds: Region
    """The source voxels that count as volume; by default all. Padding begins at its faces."""
    clips: tuple[Clip, ...]
    """Hard crops made after an interpolating op."""
    keeps_dtype: bool
    """Whether only lattice ops were applied, so that the output has the stored type."""

    def __init__(
        self,
        source: Grid,
        matrix: Matrix | Rows | None = None,
        shape: Sequence[int] | None = None,
        bounds: Region | None = None,
        clips: Sequence[Clip] = (),
        keeps_dtype: bool = True,
        *,
        rows: Matrix | Rows | None = None,
    ) -> None:
        # ``dataclasses.replace`` gives every field by its name, so the present rows come beside
        # a new matrix; what was asked for holds.
        if matrix is None:
            matrix = rows
        if matrix is None or shape is None:
            raise TypeError("a plan is given its source, a matrix of 4x4 and a shape")
        # The dictionary, once: a chain makes several plans per sample.
        self.__dict__.update(
            source=source,
            rows=as_rows(matrix),
            shape=_shape(shape),
            bounds=bounds if bounds is not None else source.region,
            clips=tuple(clips),
            keeps_dtype=keeps_dtype,
        )

    @classmethod
    def identity(cls, grid: Grid) -> SpatialPlan:
        """Return the plan that gives back the volume on ``grid`` as it is."""
        return cls(grid, IDENTITY, grid.shape)

    @cached_property
    def matrix(self) -> Matrix:
        """4x4 float64, read-only: ``index_in = matrix @ index_out``, voxel centres."""
        return matrix_of(self.rows)

    def then(self, pull_back: Matrix | Rows, shape: Sequence[int], *, lattice: bool) -> SpatialPlan:
        """Return the plan followed by one more op.

        Parameters
        ----------
        pull_back
            4x4 float64: index of the new output to index of the present one.
        shape
            Shape of the new output.
        lattice
            Whether the op moves whole voxels only.
        """
        step = as_rows(pull_back)
        clips = self.clips
        if clips:
            matrix = matrix_of(step)
            clips = tuple(Clip(clip.matrix @ matrix, clip.shape) for clip in clips)
        rows, keeps_dtype = composed(self.rows, step), self.keeps_dtype and lattice
        return SpatialPlan(self.source, rows, shape, self.bounds, clips, keeps_dtype)

    def crop(self, start: Sequence[int], size: Sequence[int], *, hard: bool = False) -> SpatialPlan:
        """Return the plan of a box of the present output, which may hang over its edges.

        A soft crop changes the field of view only: ops that follow take what they need from
        the volume around it. After a hard crop nothing outside the box exists any more: padding
        begins at its faces, or, once an interpolating op has been applied, all outside is fill.

        Parameters
        ----------
        start
            First voxel on each axis, in the present output.
        size
            Number of voxels on each axis.
        hard
            Whether what lies outside the box is gone.
        """
        i, j, k = start
        cropped = self.then(moved(IDENTITY, (i, j, k)), size, lattice=True)
        if not hard:
            return cropped
        whole = whole_rows(cropped.rows, cropped.shape)
        if whole is None:
            return cropped._with(clips=(*cropped.clips, Clip(np.eye(4), cropped.shape)))
        low, high = extremes(np.reshape(whole, (3, 4)), cropped.shape)
        box = Region(tuple(map(int, low)), tuple(int(v) + 1 for v in high))
        return cropped._with(bounds=self.bounds.intersect(box))

    def interpolated(self) -> SpatialPlan:
        """Return the plan after an interpolating op that did nothing this time.

        The type of the output then does not depend on whether a random op acted.
        """
        return self._with(keeps_dtype=False) if self.keeps_dtype else self

    def _with(
        self,
        *,
        bounds: Region | None = None,
        clips: tuple[Clip, ...] | None = None,
        keeps_dtype: bool | None = None,
    ) -> SpatialPlan:
        return SpatialPlan(
            self.source,
            self.rows,
            self.shape,
            self.bounds if bounds is None else bounds,
            self.clips if clips is None else clips,
            self.keeps_dtype if keeps_dtype is None else keeps_dtype,
        )

    @cached_property
    def affine_rows(self) -> Rows:
        """The affine of the output as plain floats, row by row."""
        return composed(self.source.rows, self.rows)

    @cached_property
    def affine(self) -> NDArray[np.float64]:
        """4x4 float64 of the output: voxel index to world millimetres."""
        return matrix_of(self.affine_rows)

    @cached_property
    def grid(self) -> Grid:
        """Grid of the output."""
        return Grid(self.shape, self.affine)

    @cached_property
    def is_copy(self) -> bool:
        """Whether whole voxels are moved only, measured in voxels over the whole extent."""
        return not self.clips and whole_rows(self.rows, self.shape) is not None

    def source_region(self, policy: Policy = INTENSITY) -> Region:
        """Return exactly the source voxels that resampling by ``policy`` may touch.

        The result lies inside ``bounds``, and is empty where every output voxel is fill.
        """
        return touched(self.rows, self.shape, self.bounds, policy.mode, policy.padding)

    def source_box(self, policy: Policy = INTENSITY) -> OrientedBox | None:
        """Return the oriented box in which the taps of :meth:`source_region` lie.

        None where it is no smaller than the region: nothing is turned, or padding
        leads taps elsewhere.
        """
        return source_box(self.matrix, self.shape, self.bounds, policy)

    def inverse(self) -> SpatialPlan:
        """Return the plan that brings an output of this one back onto the source grid.

        Raises
        ------
        ValueError
            The matrix cannot be inverted.
        """
        try:
            back = np.asarray(np.linalg.inv(self.matrix), dtype=np.float64)
        except np.linalg.LinAlgError:
            msg = f"a plan without volume has no inverse: matrix {self.matrix.tolist()}"
            raise ValueError(msg) from None
        return SpatialPlan(self.grid, back, self.source.shape, keeps_dtype=self.keeps_dtype)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return {
            "source": self.source.to_json(),
            "matrix": self.matrix.tolist(),
            "shape": list(self.shape),
            "bounds": [list(pair) for pair in self.bounds],
            "clips": [{"matrix": c.matrix.tolist(), "shape": list(c.shape)} for c in self.clips],
            "keeps_dtype": self.keeps_dtype,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SpatialPlan:
        """Return the plan that :meth:`to_json` described."""
        return cls(
            Grid.from_json(data["source"]),
            np.array(data["matrix"]),
            data["shape"],
            Region(*zip(*data["bounds"], strict=True)),
            tuple(Clip(np.array(c["matrix"]), c["shape"]) for c in data["clips"]),
            bool(data["keeps_dtype"]),
        )

    def explain(self, policy: Policy = INTENSITY) -> str:
        """Return one line: the shapes, how the voxels are made, which are read."""
        region = self.source_region(policy)
        work = "copy" if self.is_copy else f"{policy.mode} interpolation"
        reads = str(region)[len("Region(") : -1]
        clipped = f", inside {len(self.clips)} hard crop(s)" if self.clips else ""
        sizes = f"{_times(self.shape)} from {_times(self.source.shape)}"
        return f"{sizes}: {'all fill' if region.is_empty else f'{work} of {reads}'}{clipped}"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SpatialPlan):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def _values(self) -> tuple[Any, ...]:
        return tuple(self.__getstate__().values())

    def __getstate__(self) -> dict[str, Any]:
        # What was computed is computed again: a plan travels as what it says.
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}


def _frozen(matrix: Any) -> Matrix:
    # Adding zero turns -0.0 into 0.0, which would tell equal plans apart by their bytes.
    copy: Matrix = np.array(matrix, dtype=np.float64) + 0.0
    if copy.shape != (4, 4):
        msg = f"a pull-back is 4x4, got {copy.shape}"
        raise ValueError(msg)
    copy.setflags(write=False)
    return copy


def _shape(values: Sequence[int]) -> Shape:
    i, j, k = values
    return (int(i), int(j), int(k))


def _times(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
