"""A plan from plain data: what was written, perhaps by something else, is looked at first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core import Grid, Region
from ...core.call_site import shorten
from ...core.errors import BadPlan
from ...core.validate import is_integer
from .stages import Clip, Displacement, Stage

# Another one is not read.
VERSION = 1
NAMES: dict[type[Stage], str] = {Clip: "clip", Displacement: "displacement"}
"""What stages are called."""

_PLAN = ("version", "source", "matrix", "shape", "bounds", "stages", "keeps_dtype", "slices")
_DO = "Write plans with SpatialPlan.to_json(), of this version of voxpipe."
_LAST_ROW = [0.0, 0.0, 0.0, 1.0]
# Beyond this, doubles do not tell neighbouring voxels apart, and products of a few leave their
# range. A matrix of a plan or a grid has three such factors.
_LARGEST = 2**53
Triple = tuple[int, int, int]


def arguments_of(data: Any) -> tuple[Any, ...]:
    """Return the arguments of ``SpatialPlan`` in what ``to_json`` gave; BadPlan for other data."""
    if isinstance(data, str) and data.lstrip().startswith("{"):
        raise BadPlan("a plan is read from values, and this is text", do="json.loads() it first.")
    if isinstance(data, Mapping) and data.get("version") != VERSION:
        given = (
            f"is of version {shorten(data['version'])}" if "version" in data else "has no version"
        )
        msg = f"the plan {given}, and {VERSION} is what is read here"
        raise BadPlan(msg, do=_DO)
    if isinstance(data, Mapping):
        data = {"slices": [], **data}  # it is written where there are some
    _, source, matrix, shape, bounds, stages, keeps_dtype, slices = _fields("a plan", data, _PLAN)
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
    return (
        grid,
        _matrix("matrix", matrix),
        _shape("shape", shape),
        _bounds(bounds),
        tuple(_stage(f"stages[{n}]", stage) for n, stage in enumerate(stages)),
        keeps_dtype,
        tuple(map(int, slices)),
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
    """Return the values of exactly these fields."""
    if not isinstance(data, Mapping):
        raise _bad(what, f"a mapping with {', '.join(names)}", data)
    missing = [name for name in names if name not in data]
    if missing:
        raise BadPlan(f"{what} lacks {', '.join(missing)}", do=_DO)
    if unknown := [name for name in data if name not in names]:
        told = ", ".join(name if isinstance(name, str) else shorten(name) for name in unknown[:9])
        raise BadPlan(f"{what} has unknown fields, {told:.200}", do=_DO)
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


def _shape(name: str, value: Any) -> Triple:
    sound = _is_list(value) and len(value) == 3 and all(map(is_integer, value))
    if not sound or min(value) < 0 or max(value) > _LARGEST:
        raise _bad(name, "three integers from 0", value)
    return (int(value[0]), int(value[1]), int(value[2]))


def _bounds(value: Any) -> Region:
    pairs: list[Any] = list(value) if _is_list(value) and len(value) == 3 else [None]
    for pair in pairs:
        if not _is_list(pair) or len(pair) != 2 or not all(map(is_integer, pair)):
            raise _bad("bounds", "three pairs of integers [start, stop]", value)
        if max(map(abs, pair)) > _LARGEST:
            raise _bad("bounds", "integers up to 2**53", value)
        if pair[0] > pair[1]:
            raise _bad("bounds", "pairs with start <= stop", value)
    return Region(*zip(*pairs, strict=True))


def _bad(name: str, wanted: str, value: Any) -> BadPlan:
    return BadPlan(f"{name} is {wanted}, got {shorten(value)}", do=_DO)
