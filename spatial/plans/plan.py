"""A frozen description of pending spatial work: the origin of every output voxel.

A chain of ops composes to one pull-back matrix, ``M = P1 @ P2 @ ... @ Pn``. The shape and the
affine of a plan are always those of its *output*. Displacements, and hard crops after an op that
interpolates, do not fit into a matrix: they are its stages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ...core import Grid, Region
from ...core.affine3x4 import IDENTITY, Affine3x4, affine3x4, compose, matrix4x4
from ...core.call_site import shorten
from ...core.errors import BadPlan
from ...core.grid import AS_READ, numbers_of_axes
from ...core.lru_cache import cached_property
from ...core.settings import bytes_text
from ...core.validate import is_integer
from ...intensity.filters import reach
from . import mapping
from .policy import INTENSITY, Policy
from .pull_back import Matrix, Moves, extremes, sigmas, source_region, whole_rows
from .stages import (
    NO_STAGES,
    Clip,
    Displacement,
    KernelStages,
    Stage,
    displacement_bounds,
    kernel_stages,
)

# Plans of other versions are refused.
VERSION = 1
# Orders of ``to_axes()``, and of a plane of unnamed axes.
NAMED_ORDERS = ("xyz", "xzy", "yxz", "yzx", "zxy", "zyx", "xy", "xz", "yx", "yz", "zx", "zy", "ij")
NAMES: dict[type[Stage], str] = {Clip: "clip", Displacement: "displacement"}
"""Names of stages in JSON."""

_PLAN = ("version", "source", "matrix", "shape", "bounds", "stages", "keeps_dtype", "slices")
_DO = "Write plans with SpatialPlan.to_json(), of this version of voxpipe."
_LAST_ROW = [0.0, 0.0, 0.0, 1.0]
# Beyond this, doubles cannot separate neighbours; a plan multiplies three such factors.
_LARGEST = 2**53
Shape = tuple[int, int, int]


def arguments_of(data: Any) -> tuple[Any, ...]:
    """Return the arguments of ``SpatialPlan`` from ``to_json`` data; BadPlan for other data."""
    if isinstance(data, str) and data.lstrip().startswith("{"):
        raise BadPlan("a plan is read from values, and this is text", do="json.loads() it first.")
    if isinstance(data, Mapping) and data.get("version") != VERSION:
        problem = (
            f"is of version {shorten(data['version'])}" if "version" in data else "has no version"
        )
        raise BadPlan(f"the plan {problem}, and {VERSION} is what is read here", do=_DO)
    if isinstance(data, Mapping):
        data = {"slices": [], "axes": "", **data}  # written only if not empty
    fields = _fields("a plan", data, (*_PLAN, "axes"))
    _, source, matrix, shape, bounds, stages, keeps_dtype, slices, axes = fields
    grid_shape, affine = _fields("source", source, ("shape", "affine"))
    grid = Grid(_shape("source.shape", grid_shape), _matrix("source.affine", affine))
    if grid.is_singular:
        raise _bad("source.affine", "a matrix that has an inverse", affine)
    if not isinstance(keeps_dtype, bool):
        raise _bad("keeps_dtype", "true or false", keeps_dtype)
    if not _is_list(stages):
        raise _bad("stages", "a list", stages)
    if not _is_list(slices) or not all(is_integer(axis) and 0 <= axis < 3 for axis in slices):
        raise _bad("slices", "a list of axes, 0 to 2", slices)
    if axes not in ("", *NAMED_ORDERS):
        raise _bad("axes", f"one of {', '.join(NAMED_ORDERS)}", axes)
    return (
        grid,
        _matrix("matrix", matrix),
        _shape("shape", shape),
        _bounds(bounds),
        tuple(_stage(f"stages[{n}]", stage) for n, stage in enumerate(stages)),
        keeps_dtype,
        tuple(map(int, slices)),
        axes,
    )


def _stage(name: str, data: Any) -> Stage:
    kind = next(iter(data), None) if isinstance(data, Mapping) and len(data) == 1 else None
    where = f"{name}.{kind}"
    if kind == "clip":
        matrix, shape = _fields(where, data[kind], ("matrix", "shape"))
        return Clip(_matrix(f"{where}.matrix", matrix), _shape(f"{where}.shape", shape))
    if kind == "displacement":
        control, matrix = _fields(where, data[kind], ("control", "matrix"))
        points = _numbers(f"{where}.control", control)
        if points.ndim != 4 or points.shape[0] != 3 or not points.size:
            raise _bad(f"{where}.control", "numbers of shape (3, I, J, K)", points.shape)
        return Displacement(points, _matrix(f"{where}.matrix", matrix))
    raise _bad(name, f"one of {', '.join(NAMES.values())}, by its name", data)


def _fields(what: str, data: Any, names: Sequence[str]) -> list[Any]:
    if not isinstance(data, Mapping):
        raise _bad(what, f"a mapping with {', '.join(names)}", data)
    missing = [name for name in names if name not in data]
    if missing:
        raise BadPlan(f"{what} lacks {', '.join(missing)}", do=_DO)
    if unknown := [name for name in data if name not in names]:
        text = ", ".join(name if isinstance(name, str) else shorten(name) for name in unknown[:9])
        raise BadPlan(f"{what} has unknown fields, {text:.200}", do=_DO)
    return [data[name] for name in names]


def _is_list(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _numbers(name: str, value: Any) -> NDArray[np.float64]:
    try:
        array = np.array(value)
    except (ValueError, TypeError, RecursionError):
        array = np.array(None)
    if array.dtype.kind not in "iuf" or not (np.abs(array.astype(np.float64)) <= _LARGEST).all():
        raise _bad(name, "finite numbers, up to 2**53, in rows of one length", value)
    return array.astype(np.float64)


def _matrix(name: str, value: Any) -> NDArray[np.float64]:
    matrix = _numbers(name, value)
    if matrix.shape != (4, 4) or matrix[3].tolist() != _LAST_ROW:
        raise _bad(name, "a matrix of 4x4 whose last row is 0 0 0 1", value)
    return matrix


def _integers(value: Any, least: int) -> bool:
    """Whether a value is a list of integers that plans can have, from ``least``."""
    return _is_list(value) and all(is_integer(n) and least <= n <= _LARGEST for n in value)


def _shape(name: str, value: Any) -> Shape:
    if not _integers(value, 0) or len(value) != 3:
        raise _bad(name, "three integers from 0", value)
    return (int(value[0]), int(value[1]), int(value[2]))


def _bounds(value: Any) -> Region:
    pairs: list[Any] = list(value) if _is_list(value) and len(value) == 3 else [None]
    sound = all(_integers(pair, -_LARGEST) and len(pair) == 2 for pair in pairs)
    if not sound or any(start > stop for start, stop in pairs):
        raise _bad("bounds", "three pairs of integers up to 2**53, start <= stop", value)
    return Region([a for a, _ in pairs], [b for _, b in pairs])


def _bad(name: str, form: str, value: Any) -> BadPlan:
    return BadPlan(f"{name} is {form}, got {shorten(value)}", do=_DO)


@dataclass(frozen=True)
class SpatialPlan:
    """The origin of every output voxel.

    Examples
    --------
    >>> plan = SpatialPlan.identity(Grid((10, 10, 10), np.diag([1.0, 1.0, 2.0, 1.0])))
    >>> patch = plan.crop((2, 3, 4), (4, 4, 4))
    >>> patch.shape, patch.affine[:3, 3].tolist()
    ((4, 4, 4), [2.0, 3.0, 8.0])
    >>> patch.source_region()
    Region(2:6, 3:7, 4:8)
    >>> print(patch.explain())
    4x4x4 from 10x10x10: copy of 2:6, 3:7, 4:8; 64 voxels read, no interpolation

    A changed copy; ``matrix=`` may be given, too:

    >>> from dataclasses import replace
    >>> replace(patch, shape=(4, 4, 2)).source_region()
    Region(2:6, 3:7, 4:6)
    """

    source: Grid
    """Grid of the stored volume."""
    rows: Affine3x4
    """The pull-back as plain floats, row by row; given as a matrix of 4x4."""
    shape: Shape
    """Shape (I, J, K) of the output."""
    bounds: Region
    """The source voxels that count as volume; by default all. Padding begins at its faces."""
    stages: tuple[Stage, ...]
    """Hard crops made after an interpolating op, and displacements; the first applied first."""
    keeps_dtype: bool
    """Whether only lattice ops were applied, so that the output has the stored type."""
    slices: tuple[int, ...]
    """Axes along which the source is one slice of a thicker volume, as after a flush of one slice.
    Ops treat such data as 3-D patches, not as 2-D images."""
    axes: str = field(compare=False)
    """Names of the axes of the output, as of a grid; by default those of the source."""

    def __init__(
        self,
        source: Grid,
        matrix: Matrix | Affine3x4 | None = None,
        shape: Sequence[int] | None = None,
        bounds: Region | None = None,
        stages: Sequence[Stage] = (),
        keeps_dtype: bool = True,
        slices: Sequence[int] = (),
        axes: str = "",
        *,
        rows: Matrix | Affine3x4 | None = None,
    ) -> None:
        # ``dataclasses.replace`` passes the present rows along with a new matrix, which wins.
        if matrix is None:
            matrix = rows
        if matrix is None or shape is None:
            raise TypeError("a plan is given its source, a matrix of 4x4 and a shape")
        i, j, k = shape
        self.__dict__.update(
            source=source,
            rows=affine3x4(matrix),
            shape=(int(i), int(j), int(k)),
            bounds=bounds if bounds is not None else source.region,
            stages=tuple(stages),
            keeps_dtype=keeps_dtype,
            slices=tuple(slices),
            axes=axes or source.axes,
        )
        if not self.stages:
            self.__dict__.update(moves=(), kernel_stages=NO_STAGES)

    @classmethod
    def identity(cls, grid: Grid, slices: Sequence[int] = ()) -> SpatialPlan:
        """Return the plan of the unchanged volume on ``grid``."""
        return cls(grid, IDENTITY, grid.shape, slices=slices)

    @cached_property
    def matrix(self) -> Matrix:
        """4x4 float64, read-only: ``index_in = matrix @ index_out``, voxel centres."""
        return matrix4x4(self.rows)

    def then(
        self, pull_back: Matrix | Affine3x4, shape: Sequence[int], *, lattice: bool
    ) -> SpatialPlan:
        """Return the plan followed by one more op, which has an output of ``shape``.

        ``pull_back`` maps an index of the new output to one of the present: 4x4 float64 or its
        first three rows. Set ``lattice`` if the op moves whole voxels only.
        """
        rows = compose(self.rows, affine3x4(pull_back))
        return self._with(rows=rows, shape=shape, keeps_dtype=self.keeps_dtype and lattice)

    def displace(self, control: NDArray[np.float64], matrix: Matrix) -> SpatialPlan:
        """Return the plan followed by a displacement: ``y`` gets the content of ``y + D(y)``.

        ``control`` (3, a, b, c) float64 holds the control points of a uniform cubic B-spline. They
        are displacements along each axis of the present output, in its voxels. ``matrix`` (4x4)
        maps an index of the present output to the control grid. Raises ValueError for other shapes
        and infinite values.
        """
        field = Displacement(control, matrix)  # refuses infinite values
        if not field.control.any():  # a copy stays a copy
            return self.interpolate()
        stage = field.move(self.matrix, self.to_output)
        return self._with(stages=(*self.stages, stage), keeps_dtype=False)

    def crop(self, start: Sequence[int], size: Sequence[int], *, hard: bool = False) -> SpatialPlan:
        """Return the plan of a box of the present output, which may hang over its edges.

        After a soft crop later ops may read the volume around the box. After a hard crop nothing
        outside exists: padding begins at the box's faces. Once an interpolating op has been
        applied, the outside of a hard crop is fill.

        Parameters
        ----------
        start
            First voxel on each axis, in the present output.
        size
            Number of voxels on each axis.
        hard
            Whether the voxels outside the box are gone.
        """
        i, j, k = start
        move = (1.0, 0.0, 0.0, i, 0.0, 1.0, 0.0, j, 0.0, 0.0, 1.0, k)
        plan = self._with(rows=compose(self.rows, move), shape=size)
        if not hard:
            return plan
        whole = whole_rows(plan.rows, plan.shape)
        if whole is None or plan.is_displaced:
            clip = Clip(plan.to_output, plan.shape)
            return plan._with(stages=(*plan.stages, clip))
        low, high = extremes(whole, plan.shape)
        box = Region(tuple(map(int, low)), tuple(int(v) + 1 for v in high))
        return plan._with(bounds=self.bounds.intersect(box))

    def with_axes(self, axes: str) -> SpatialPlan:
        """Return the plan with other names of its axes."""
        return self if axes == self.axes else self._with(axes=axes)

    def interpolate(self) -> SpatialPlan:
        """Return the plan after an interpolating op that did nothing this time.

        The type of the output then does not depend on whether a random op acted.
        """
        return self._with(keeps_dtype=False) if self.keeps_dtype else self

    def _with(self, **changes: Any) -> SpatialPlan:
        # Skips the constructor's checks of valid fields: an op makes two plans.
        plan, own = object.__new__(SpatialPlan), self.__dict__
        state = plan.__dict__
        state.update([(name, own[name]) for name in self.__dataclass_fields__])
        state.update(changes)
        i, j, k = state["shape"]
        state["shape"] = (int(i), int(j), int(k))
        if not state["stages"]:
            state.update(moves=(), kernel_stages=NO_STAGES)
        return plan

    @cached_property
    def affine_rows(self) -> Affine3x4:
        """Return the affine of the output as plain floats, row by row."""
        return compose(self.source.rows, self.rows)

    @cached_property
    def affine(self) -> NDArray[np.float64]:
        """4x4 float64 of the output: voxel index to world millimetres."""
        return matrix4x4(self.affine_rows)

    @cached_property
    def grid(self) -> Grid:
        """Grid of the output."""
        return Grid(self.shape, self.affine, self.axes)

    @property
    def is_flat(self) -> bool:
        """Whether the output has two axes for the user: the last one, of one voxel, is hidden."""
        return len(self.axes) == 2

    @cached_property
    def frame_rows(self) -> Affine3x4:
        """Rows of the affine in the frame of amounts: world axes in the order of ``to_axes()``."""
        rows = self.affine_rows
        frame = (rows[4 * n : 4 * n + 4] for n in numbers_of_axes(self.axes))
        return tuple(number for row in frame for number in row)  # type: ignore[return-value]

    @cached_property
    def is_copy(self) -> bool:
        """Whether only whole voxels move, measured in voxels over the whole extent."""
        return not self.stages and whole_rows(self.rows, self.shape) is not None

    @cached_property
    def is_displaced(self) -> bool:
        """Whether some voxel may move by more than the matrix."""
        return any(isinstance(stage, Displacement) for stage in self.stages)

    @cached_property
    def kernel_stages(self) -> KernelStages:
        """Return the stages as :func:`resample` takes them."""
        return kernel_stages(self.stages, self.matrix)

    @cached_property
    def moves(self) -> Moves:
        """Bounds of displacements of the output, per source axis; empty without any."""
        return displacement_bounds(self.rows, self.shape, self.kernel_stages)

    @cached_property
    def to_output(self) -> Matrix:
        """4x4 float64: source index to output index, displacements left out.

        Raises
        ------
        ValueError
            The plan has no volume.
        """
        try:
            return np.asarray(np.linalg.inv(self.matrix), dtype=np.float64)
        except np.linalg.LinAlgError:
            msg = f"a plan without volume has no inverse: matrix {self.matrix.tolist()}"
            raise ValueError(msg) from None

    def source_region(self, policy: Policy = INTENSITY) -> Region:
        """Return exactly the source voxels that resampling with ``policy`` may read.

        The result is within ``bounds``, and is empty if every output voxel is fill.
        """
        how = (policy.mode, policy.padding, policy.antialias is not False)
        return source_region(self.rows, self.shape, self.bounds, *how, self.moves)

    def inverse(self, tolerance: float = mapping.TOLERANCE) -> SpatialPlan:
        """Return the plan that brings an output of this one back onto the source grid.

        The inverse is one resample; crops and voxels outside this plan's bounds become padding or
        fill. Displacements come back within ``tolerance`` voxels of the output; all else exactly.

        Raises
        ------
        ValueError
            The matrix has no inverse, a displacement folds, or the tolerance cannot be kept.
        """
        stages: list[Stage] = []
        if self.is_displaced:
            way = (self.matrix, self.to_output, self.shape, self.stages, self.moves)
            stages.append(mapping.field_back(*way, tolerance))
        bounds: Region | None = None
        if self.bounds != self.source.region and self.is_copy:
            # A box of whole voxels, so that the way back is a copy as well, of any type.
            whole = self.grid.region
            bounds = Region(whole.start, whole.start)
            if not self.bounds.is_empty:
                bounds = box_to_output(self, self.bounds).intersect(whole)
        elif self.bounds != self.source.region:
            # Voxels outside the bounds were padding: the way back fills them.
            stages.append(Clip.of_region(self.bounds).after(self.matrix))
        shape, axes = self.source.shape, self.source.axes
        return SpatialPlan(
            self.grid, self.to_output, shape, bounds, stages, self.keeps_dtype, axes=axes
        )

    def points_to_source(self, points: Any) -> NDArray[np.float64]:
        """Return where points (N, 3) of the output come from, in source voxels, float64."""
        return mapping.to_source(self.matrix, self.stages, mapping.as_points(points))

    def points_to_output(self, points: Any) -> NDArray[np.float64]:
        """Return where points (N, 3) in source voxels go, in voxels of the output, float64.

        Raises
        ------
        ValueError
            The matrix has no inverse, or a displacement folds.
        """
        places = mapping.undo_displacements(mapping.as_points(points).T, self.stages)
        back = self.to_output
        return np.asarray((back[:3, :3] @ places + back[:3, 3:]).T)

    def boxes_to_source(self, boxes: Any) -> NDArray[np.float64]:
        """Return boxes (N, 6) of the source that contain the sources of output boxes.

        A box is its lowest and highest corner in voxels, float64. It is the bounding box of a
        turned one, and a safe bound with displacements. Hard crops do not shrink it.
        """
        return mapping.boxes_to_source(self.matrix, self.stages, mapping.as_boxes(boxes))

    def boxes_to_output(self, boxes: Any) -> NDArray[np.float64]:
        """Return boxes (N, 6) of the output that contain the images of source boxes.

        Raises
        ------
        ValueError
            The matrix has no inverse.
        """
        return mapping.boxes_to_output(self.to_output, self.stages, mapping.as_boxes(boxes))

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        return {
            "version": VERSION,
            "source": self.source.to_json(),
            "matrix": self.matrix.tolist(),
            "shape": list(self.shape),
            "bounds": [list(pair) for pair in self.bounds],
            "stages": [{NAMES[type(stage)]: stage.to_json()} for stage in self.stages],
            "keeps_dtype": self.keeps_dtype,
            **({"slices": list(self.slices)} if self.slices else {}),
            **({"axes": self.axes} if self.axes not in AS_READ else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SpatialPlan:
        """Return the plan that :meth:`to_json` described.

        Raises
        ------
        BadPlan
            A field is missing, unknown, of another form or not finite; or the version is another.
        """
        return cls(*arguments_of(data))

    def explain(
        self, policy: Policy = INTENSITY, dtype: DTypeLike | None = None, channels: int = 1
    ) -> str:
        """Return one line: the shapes, the class of the work, and the voxels to read.

        With the stored ``dtype`` it reports bytes of all ``channels`` instead.
        """
        value: Any = policy
        if not isinstance(value, Policy):
            msg = f"policy is a Policy, such as Policy('linear', 'border'), got {policy!r}"
            raise TypeError(msg)
        sizes = f"{_times(self.shape)} from {_times(self.source.shape)}"
        region = self.source_region(policy)
        if region.is_empty:
            return f"{sizes}: all fill"
        kind = kernel_class(self, policy)
        work = "copy" if kind == "copy" else f"{kind} {policy.mode} interpolation"
        parts = [f"{work} of {str(region)[len('Region(') : -1]}"]
        smooths = bool(policy.antialias) and any(map(reach, sigmas(self.rows)))
        if smooths:
            amounts = ", ".join(f"{s:.3g}" for s in sigmas(self.rows))
            parts.append(f"smoothed by {amounts} voxels before")
        crops = sum(isinstance(stage, Clip) for stage in self.stages)
        if crops:
            through = ", which the smoothing looks beyond without a flush() after it" * smooths
            parts.append(f"inside {crops} hard crop(s){through}")
        if not self.kernel_stages.is_for_kernel:
            parts.append(
                f"{len(self.kernel_stages.earlier)} displacement(s) or hard crop(s) before the "
                "last displacement, so by NumPy and not by the kernel"
            )
        amount = f"{region.size} voxels"
        if dtype is not None:
            amount = bytes_text(region.size * channels * np.dtype(dtype).itemsize)
        count = "no interpolation" if kind == "copy" else "1 interpolation"
        return f"{sizes}: {', '.join(parts)}; {amount} read, {count}"

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in self.__dataclass_fields__}


KernelClass = Literal["copy", "separable", "affine", "displacement"]
"""The cheapest first.

- ``"copy"``: whole voxels move, bit for bit.
- ``"separable"``: each source axis follows one output axis; taps and weights are tabulated once per
  axis (linear and nearest).
- ``"affine"``: every voxel has its own coordinates.
- ``"displacement"``: as affine, and a spline moves each voxel.
"""


def kernel_class(plan: SpatialPlan, policy: Policy = INTENSITY) -> KernelClass:
    """Return the class of the work of ``plan`` under ``policy``."""
    if plan.is_copy:
        return "copy"
    if plan.is_displaced:
        return "displacement"
    # A hard crop inside the kernel is tested voxel by voxel; cubic has no tables.
    plain = not plan.stages and policy.mode != "cubic"
    return "separable" if plain and _keeps_apart(plan.rows, plan.shape) else "affine"


def _keeps_apart(rows: Affine3x4, shape: Sequence[int]) -> bool:
    """Whether source and output axes correspond one to one."""
    pairs: list[tuple[int, int]] = [
        (source, axis)
        for source in range(3)
        for axis in range(3)
        # Along an axis of one voxel nothing moves, for any matrix.
        if rows[4 * source + axis] != 0 and shape[axis] > 1
    ]
    sources, axes = [source for source, _ in pairs], [axis for _, axis in pairs]
    return len(set(sources)) == len(pairs) == len(set(axes))


def box_to_output(plan: SpatialPlan, box: Region, grid: Grid | None = None) -> Region:
    """Return the smallest output box with every voxel of a source box.

    It is exact for a copy, else the bounding box with the largest displacement. A box without a
    voxel centre gives the nearest voxels. The result may exceed the output. ``box`` is in voxels of
    ``grid``, by default the plan's source; world places are kept.
    """
    faces = np.array([[*(a - 0.5 for a in box.start), *(b - 0.5 for b in box.stop)]])
    if grid is not None:
        is_same = grid.shape == plan.source.shape
        if not is_same or plan.source.distance_in_voxels(grid) > SAME_GRID:
            across = np.linalg.solve(plan.source.affine, grid.affine)
            faces = mapping.around(np.asarray(across, dtype=np.float64), faces)
    bounds = mapping.boxes_to_output(plan.to_output, plan.stages, faces)[0]
    return mapping.whole_voxels(bounds, plan.shape)


SAME_GRID = 1e-2
"""Volumes of one case on the same grid differ by at most this, in voxels at their corners."""


def _times(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
