"""What every spatial op does to a grid, written down from its documentation, op by op.

Nothing is shared with the ops but what they drew: no matrices, no plans. NumPy, float64; nibabel
says what an orientation is. An op of a plug-in speaks for itself, alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from voxpipe.core import Grid
from voxpipe.spatial import Displacement, Elastic, SpatialOp, SpatialPlan
from voxpipe.testing.spatial_oracle import Floats, spline_at

_OURS = "voxpipe"

Back = Callable[[Floats], Floats]
"""Places on the output of an op, (3, N), to places on its input."""


@dataclass(frozen=True)
class Moved:
    """What one op does to a grid."""

    back: Back
    """Where places come from."""
    grid: Grid
    """The grid after it, as an eager library would store it."""
    hard: bool = False
    """Whether nothing outside of the new grid exists any more."""
    bends: bool = False
    """Whether straight lines may become bent, however little."""


def moved_by(op: SpatialOp, drawn: Mapping[str, Any], grid: Grid) -> Moved:
    """Return what ``op`` does to ``grid``.

    An op of a plug-in that is not written down here speaks for itself.

    Raises
    ------
    LookupError
        One of our own is not written down.
    """
    known = written_down(type(op))
    if known is not None:
        return known(op, drawn, grid)
    if type(op).__module__.split(".", 1)[0] == _OURS:
        msg = f"{type(op).__name__} is not written down here, so nothing would be compared"
        raise LookupError(msg)
    alone = op.then(SpatialPlan.identity(grid), drawn)

    def back(where: Floats) -> Floats:
        found = alone.matrix[:3, :3] @ where + alone.matrix[:3, 3:]
        for stage in reversed(alone.stages):
            if isinstance(stage, Displacement):
                found = found + spline_at(stage.control, _apply(stage.matrix, found))
        return np.asarray(found)

    return Moved(back, alone.grid, bool(getattr(op, "hard", False)), alone.is_displaced)


def written_down(op: type) -> Callable[[Any, Mapping[str, Any], Grid], Moved] | None:
    """Return what says here what an op does; None for one of which nothing is said."""
    return next((_OPS[k.__name__] for k in op.__mro__ if k.__name__ in _OPS), None)


def _apply(matrix: Floats, where: Floats) -> Floats:
    return np.asarray(matrix[:3, :3] @ where + matrix[:3, 3:])


def _by_matrix(matrix: Floats, shape: Sequence[int], grid: Grid, *, hard: bool = False) -> Moved:
    after = Grid(tuple(int(n) for n in shape), grid.affine @ matrix)  # type: ignore[arg-type]
    return Moved(lambda where: _apply(matrix, where), after, hard)


def _cut(start: Sequence[int], size: Sequence[int], grid: Grid, *, hard: bool = False) -> Moved:
    matrix = np.eye(4)
    matrix[:3, 3] = start
    return _by_matrix(matrix, size, grid, hard=hard)


def _crop(op: Any, drawn: Mapping[str, Any], grid: Grid) -> Moved:
    return _cut(drawn["start"], drawn["size"], grid, hard=getattr(op, "hard", False))


def _centred(op: Any, drawn: Mapping[str, Any], grid: Grid) -> Moved:
    # Half of what is cut off, or added, is so before; of an odd number the side decides.
    start = []
    for n, s in zip(grid.shape, drawn["size"], strict=True):
        less, more = sorted((math.floor((n - s) / 2), math.ceil((n - s) / 2)), key=abs)
        before = op.side == "start" or (op.side == "center" and n > s and n % 2 == 0)
        start.append(more if before else less)
    return _cut(start, drawn["size"], grid, hard=op.hard)


def _pad(op: Any, drawn: Mapping[str, Any], grid: Grid) -> Moved:
    size = [n + a + b for n, (a, b) in zip(grid.shape, drawn["amount"], strict=True)]
    return _cut([-a for a, _ in drawn["amount"]], size, grid)


def _flip(op: Any, drawn: Mapping[str, Any], grid: Grid) -> Moved:
    matrix = np.eye(4)
    for axis in drawn["axes"]:
        matrix[axis, axis], matrix[axis, 3] = -1, grid.shape[axis] - 1
    return _by_matrix(matrix, grid.shape, grid)


def _transpose(op: Any, drawn: Mapping[str, Any], grid: Grid) -> Moved:
    # Row n of the identity says which index stands at place n.
    matrix = np.eye(4)
    matrix[:3] = np.eye(4)[np.argsort(drawn["axes"])]
    shape = [grid.shape[axis] for axis in drawn["axes"]]
    return _by_matrix(matrix, shape, grid)


def _as_it_is(op: Any, drawn: Mapping[str, Any], grid: Grid) -> Moved:
    # Other orders change the meaning of later amounts: tests/datapipes/test_to_axes.py.
    return _by_matrix(np.eye(4), grid.shape, grid)


def _rotate90(op: Any, drawn: Mapping[str, Any], grid: Grid) -> Moved:
    # Let NumPy turn the indices themselves: what voxel stands where.
    first, second = drawn["axes"]

    def turned(shape: Sequence[int]) -> Floats:
        found = np.rot90(np.indices(shape, np.float64), drawn["k"], (first + 1, second + 1))
        return np.asarray(found)

    # The directions from a cube, so that axes of one voxel have one too.
    cube, indices = turned((2, 2, 2)), turned(grid.shape)
    matrix = np.eye(4)
    matrix[:3, 3] = indices[:, 0, 0, 0]
    for axis, neighbour in enumerate(((1, 0, 0), (0, 1, 0), (0, 0, 1))):
        matrix[:3, axis] = cube[(slice(None), *neighbour)] - cube[:, 0, 0, 0]
    return _by_matrix(matrix, indices.shape[1:], grid)


def _orientation(op: Any, drawn: Mapping[str, Any], grid: Grid) -> Moved:
    from nibabel.orientations import axcodes2ornt, io_orientation, ornt_transform

    wanted = axcodes2ornt(tuple(drawn["axcodes"]))
    order = ornt_transform(io_orientation(grid.affine), wanted)
    matrix, shape = np.zeros((4, 4)), [0, 0, 0]
    matrix[3, 3] = 1
    for old, (new, sign) in enumerate(order.tolist()):
        matrix[old, int(new)] = sign
        matrix[old, 3] = grid.shape[old] - 1 if sign < 0 else 0
        shape[int(new)] = grid.shape[old]
    return _by_matrix(matrix, shape, grid)


def _about_centre(forward: Floats, move: Sequence[float], grid: Grid, space: str) -> Floats:
    """Return the pull-back of ``centre + x -> centre + forward x + move``, the same grid."""
    linear = np.linalg.inv(forward)
    shift = -linear @ np.asarray(move, dtype=np.float64)
    if space == "world":
        axes = grid.affine[:3, :3]
        linear, shift = np.linalg.inv(axes) @ linear @ axes, np.linalg.inv(axes) @ shift
    for axis in _flat(grid):
        linear[axis], linear[:, axis], shift[axis] = 0, 0, 0
        linear[axis, axis] = 1
    centre = (np.array(grid.shape) - 1) / 2
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = linear, centre - linear @ centre + shift
    return matrix


def _flat(grid: Grid) -> list[int]:
    return [axis for axis in range(3) if grid.shape[axis] == 1]


def _same_centre(matrix: Floats, before: Sequence[int], after: Sequence[int]) -> Floats:
    """Return a pull-back from a grid of another shape about the same centre."""
    shift = np.eye(4)
    shift[:3, 3] = (np.array(before) - np.array(after)) / 2
    return np.asarray(matrix @ shift)


def _turn(degrees: Sequence[float], grid: Grid, space: str) -> Floats:
    flat = _flat(grid)
    if len(flat) != 1:
        return _about("z", degrees[2]) @ _about("y", degrees[1]) @ _about("x", degrees[0])
    if space == "voxel":
        return _about("xyz"[flat[0]], degrees[flat[0]])
    # Rodrigues' formula about the normal of the plane.
    first, second = (grid.affine[:3, axis] for axis in range(3) if axis != flat[0])
    normal = np.cross(first, second)
    nearest = int(np.argmax(np.abs(normal)))
    normal = normal / np.linalg.norm(normal) * np.sign(normal[nearest])
    x, y, z = normal
    across = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    angle = math.radians(degrees[nearest])
    turned = np.eye(3) + math.sin(angle) * across + (1 - math.cos(angle)) * across @ across
    return np.asarray(turned)


def _about(axis: str, degrees: float) -> Floats:
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    rows = {
        "x": [[1, 0, 0], [0, c, -s], [0, s, c]],
        "y": [[c, 0, s], [0, 1, 0], [-s, 0, c]],
        "z": [[c, -s, 0], [s, c, 0], [0, 0, 1]],
    }
    return np.array(rows[axis], dtype=np.float64)


def _slide(factor: Sequence[float]) -> Floats:
    xy, xz, yz = factor
    return np.array([[1, xy, xz], [0, 1, yz], [0, 0, 1]], dtype=np.float64)


def _grown(forward: Floats, op: Any, grid: Grid, whole: Callable[[float], int]) -> Moved:
    matrix = _about_centre(forward, (0, 0, 0), grid, op.space)
    if op.keep_size:
        return _by_matrix(matrix, grid.shape, grid)
    backward = getattr(op, "method", "forward") == "backward"
    turn = matrix[:3, :3] if backward else np.linalg.inv(matrix[:3, :3])
    shape = [max(1, whole(extent)) for extent in np.abs(turn) @ np.array(grid.shape)]
    return _by_matrix(_same_centre(matrix, grid.shape, shape), shape, grid)


def _rotate(op: Any, drawn: Mapping[str, Any], grid: Grid) -> Moved:
    forward = _turn(drawn["degrees"], grid, op.space)
    return _grown(forward, op, grid, lambda extent: math.floor(extent + 0.5 - 1e-6))


def _zoom(op: Any, drawn: Mapping[str, Any], grid: Grid) -> Moved:
    return _grown(np.diag(drawn["factor"]), op, grid, lambda extent: math.floor(extent + 1e-6))


def _translate(op: Any, drawn: Mapping[str, Any], grid: Grid) -> Moved:
    matrix = _about_centre(np.eye(3), drawn["amount"], grid, op.space)
    return _by_matrix(matrix, grid.shape, grid)


def _shear(op: Any, drawn: Mapping[str, Any], grid: Grid) -> Moved:
    matrix = _about_centre(_slide(drawn["factor"]), (0, 0, 0), grid, op.space)
    return _by_matrix(matrix, grid.shape, grid)


def _affine(op: Any, drawn: Mapping[str, Any], grid: Grid) -> Moved:
    given = np.array(drawn["matrix"])
    matrix = _about_centre(given[:3, :3], given[:3, 3].tolist(), grid, op.space)
    shape = grid.shape if op.shape is None else op.shape
    return _by_matrix(_same_centre(matrix, grid.shape, shape), shape, grid)


def _augment(op: Any, drawn: Mapping[str, Any], grid: Grid) -> Moved:
    stay = (0, 0, 0)
    matrix = _about_centre(_turn(drawn["rotate"], grid, op.space), stay, grid, op.space)
    for forward, move in (
        (np.diag(drawn["zoom"]), stay),
        (np.eye(3), drawn["translate"]),
        (_slide(drawn["shear"]), stay),
    ):
        # Each part acts in the world of the grid that it finds.
        now = Grid(grid.shape, grid.affine @ matrix)
        matrix = matrix @ _about_centre(forward, move, now, op.space)
    for axis in drawn["flip"]:
        mirrored = np.eye(4)
        mirrored[axis, axis], mirrored[axis, 3] = -1, grid.shape[axis] - 1
        matrix = matrix @ mirrored
    return _by_matrix(matrix, grid.shape, grid)


def _resize(op: Any, drawn: Mapping[str, Any], grid: Grid) -> Moved:
    after = drawn["size"]
    steps = [
        n / m if op.extent == "edges" else (n - 1) / (m - 1) if n > 1 and m > 1 else 1.0
        for n, m in zip(grid.shape, after, strict=True)
    ]
    return _stretched(steps, after, grid)


def _spacing(op: Any, drawn: Mapping[str, Any], grid: Grid) -> Moved:
    steps = [new / old for new, old in zip(drawn["spacing"], grid.spacing, strict=True)]
    pairs = list(zip(grid.shape, steps, strict=True))
    if op.extent == "centers":
        after = [_size((n - 1) / step + 1) for n, step in pairs]
        return _by_matrix(np.diag([*steps, 1.0]), after, grid)
    return _stretched(steps, [max(1, _size(n / step)) for n, step in pairs], grid)


def _size(extent: float) -> int:
    """Round an extent in voxels; the last digits do not say on which side of a half it lies."""
    return round(round(extent, 6))


def _stretched(steps: Sequence[float], after: Sequence[int], grid: Grid) -> Moved:
    matrix = np.diag([*steps, 1.0])
    for axis, (step, m, n) in enumerate(zip(steps, after, grid.shape, strict=True)):
        matrix[axis, 3] = (n - 1) / 2 - step * (m - 1) / 2
    return _by_matrix(matrix, after, grid)


def _resample_to(op: Any, drawn: Mapping[str, Any], grid: Grid) -> Moved:
    target: Grid = op.grid
    step = np.linalg.inv(grid.affine) @ target.affine
    return _by_matrix(step, target.shape, grid)


def _elastic(op: Elastic, drawn: Mapping[str, Any], grid: Grid) -> Moved:
    sizes = grid.spacing if op.space == "world" else (1.0, 1.0, 1.0)
    given = op.spacing if isinstance(op.spacing, tuple) else (op.spacing,) * 3
    spacing = [d / s for d, s in zip(given, sizes, strict=True)]
    # Rounding must not add a point where the spacing fits exactly.
    counts = [math.ceil((n - 1) / d - 1e-9) + 1 for n, d in zip(grid.shape, spacing, strict=True)]
    generator = np.random.Generator(np.random.Philox(key=int(drawn["key"])))
    points = 2 * generator.random((3, *counts)) - 1
    for axis in range(3):
        points[axis] *= drawn["amount"][axis] / sizes[axis] if grid.shape[axis] > 1 else 0
        edge = [slice(None)] * 4
        for layer in range(op.locked_layers if counts[axis] > 1 else 0):
            for side in (layer, counts[axis] - 1 - layer):
                edge[axis + 1] = slice(max(side, 0), max(side, 0) + 1)
                points[tuple(edge)] = 0
    # The outermost points come twice.
    ringed = np.pad(points, [(0, 0), (1, 1), (1, 1), (1, 1)], mode="edge")
    starts = [
        ((n - 1) - (c - 1) * d) / 2 for n, c, d in zip(grid.shape, counts, spacing, strict=True)
    ]
    first, step = np.array(starts)[:, None], np.array(spacing)[:, None]

    def back(where: Floats) -> Floats:
        return where + spline_at(ringed, (where - first) / step + 1)

    return Moved(back, grid, bends=bool(points.any()))


def _grid_distortion(op: Any, drawn: Mapping[str, Any], grid: Grid) -> Moved:
    # Four control points to a cell, in line beyond the faces; each axis by itself.
    moves: list[Callable[[Floats], Floats]] = []
    bends = False
    for n, factors in zip(grid.shape, drawn["factors"], strict=True):
        if n == 1:
            moves.append(np.zeros_like)
            continue
        step = n / (4 * len(factors))
        rises = [(f - 1) * step for f in factors for _ in range(4)]
        control = [-rises[0], 0.0]
        for rise in [*rises, rises[-1]]:
            control.append(control[-1] + rise)
        moves.append(_along(np.array(control), step))
        # One cell that keeps its faces stays as it is, whatever its factor.
        bends |= any(control)

    def back(where: Floats) -> Floats:
        return where + np.stack([move(x) for move, x in zip(moves, where, strict=True)])

    return Moved(back, grid, bends=bends)


def _along(control: Floats, step: float) -> Callable[[Floats], Floats]:
    """Return the spline along one axis, whose second control point is the outer face."""

    def move(x: Floats) -> Floats:
        flat = np.zeros_like(x)
        spline = np.broadcast_to(control[None, :, None, None], (3, len(control), 1, 1))
        found: Floats = spline_at(spline, np.stack([(x + 0.5) / step + 1, flat, flat]))[0]
        return found

    return move


_OPS: dict[str, Callable[[Any, Mapping[str, Any], Grid], Moved]] = {
    "Affine": _affine,
    "Augment": _augment,
    "CenterCrop": _centred,
    "Crop": _crop,
    "CropOrPad": _centred,
    "DivisiblePad": _pad,
    "Elastic": _elastic,
    "FixedPatch": _crop,
    "Flip": _flip,
    "ForegroundCrop": _crop,
    "GridDistortion": _grid_distortion,
    "LabelCrop": _crop,
    "Orientation": _orientation,
    "Pad": _pad,
    "RandomCrop": _crop,
    "ResampleTo": _resample_to,
    "Resize": _resize,
    "Rotate": _rotate,
    "Rotate90": _rotate90,
    "Shear": _shear,
    "Spacing": _spacing,
    "ToAxes": _as_it_is,
    "Translate": _translate,
    "Transpose": _transpose,
    "UniformPatch": _crop,
    "Zoom": _zoom,
}
