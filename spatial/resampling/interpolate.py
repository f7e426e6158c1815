"""Stored voxels and their sampling in NumPy: nearest, linear and cubic, block by block.

The source is never copied or cast as a whole. For each block of output voxels, coordinates are
computed in float64, turned into offsets into memory, and gathered. Temporary memory is a few arrays
of one block, at any size of patch and source.

Two identities keep one inner loop for every padding rule. Clamping a coordinate is clipping its
lower tap and its weight to the voxels at hand. And torch's "zeros", which blends each tap outside
with zero, equals clamping times the product over the axes of how far inside the coordinate is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core import Region
from ...core.affine3x4 import affine3x4
from ...core.convert_dtype import convert_dtype
from ..plans.policy import Policy
from ..plans.pull_back import CENTRE_TOLERANCE, GRAINS, REACH, Matrix, coordinate, extremes, fold
from ..plans.stages import Displacement, KernelStages, pull_back_points
from .native_resampler import SourceVoxels


def convert_one(value: float, dtype: np.dtype[Any]) -> Any:
    """Return one number in ``dtype``, by the rules of :func:`convert_dtype`."""
    return convert_dtype(np.array([value], dtype=np.float64), dtype)[0]


# Output voxels of one block: the fastest of 4096 .. 65536 within 5 %, at 3 MiB of arrays.
BLOCK = 32768

Index = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]
Floats = NDArray[Any]


class Axis(NamedTuple):
    """Range and memory layout of the coordinates along one source axis."""

    first: int  # the first voxel that counts as volume
    last: int
    start: int  # first voxel in memory
    end: int  # last voxel in memory
    stride: int  # elements between neighbours in memory
    leaves: bool  # whether some output coordinate is outside the volume
    whole: bool  # whether every coordinate is a voxel centre
    reflects: bool  # whether outside coordinates are folded back

    def inside(self, place: Floats) -> Floats:
        """Return the coordinates of one block, folded back if that is the padding."""
        if self.leaves and self.reflects:
            return fold(place, self.first, self.last + 1)
        return place

    @property
    def is_single(self) -> bool:
        """Whether one tap is enough."""
        return self.whole or self.start == self.end


class SampledArray(NamedTuple):
    """The sampled array: each channel as a one-dimensional view of its memory, with its layout."""

    # Views of a box span more elements than are read. Only unaligned arrays are copied.

    source: SourceVoxels
    channels: list[NDArray[Any]]  # per channel, the elements from its lowest to its highest address
    origin: int  # offset of voxel (0, 0, 0)
    axes: list[Axis]
    zeros: bool  # whether taps outside are blended with zero

    @property
    def is_scaled(self) -> bool:
        """Whether values differ from stored numbers."""
        return self.source.slope != 1.0 or self.source.intercept != 0.0


def _sample(
    source: SourceVoxels, matrix: Matrix, policy: Policy, shape: Sequence[int], is_displaced: bool
) -> SampledArray:
    array, size = source.array, source.array.itemsize
    if not array.flags.aligned or any(s % size for s in array.strides):
        array = array.copy()
    steps = [s // size for s in array.strides[1:]]  # negative where an axis runs backwards
    reach = [(n - 1) * s for n, s in zip(array.shape[1:], steps, strict=True)]
    lowest = tuple(slice(-1 if s < 0 else 0, None) for s in steps)
    length = sum(abs(r) for r in reach) + 1
    strided = np.lib.stride_tricks.as_strided
    views = [strided(one[lowest], (length,), (size,), writeable=False) for one in array]
    lows, highs = extremes(affine3x4(matrix), shape)
    off = np.abs(matrix - np.rint(matrix)) @ [*(n - 1 for n in shape), 1]
    axes = []
    for axis, ((first, stop), at) in enumerate(zip(source.bounds, source.start, strict=True)):
        leaves = is_displaced or lows[axis] < first or highs[axis] > stop - 1
        whole = not is_displaced and bool(off[axis] <= CENTRE_TOLERANCE)
        ends = (first, stop - 1, at, at + array.shape[1 + axis] - 1)
        axes.append(Axis(*ends, steps[axis], leaves, whole, policy.padding == "reflection"))
    origin = -sum(r for r in reach if r < 0)
    return SampledArray(source, views, origin, axes, policy.padding == "zeros")


def interpolate(
    source: SourceVoxels, matrix: Matrix, policy: Policy, out: NDArray[Any], stages: KernelStages
) -> None:
    """Write ``out`` by sampling ``source``, which holds exactly the voxels needed."""
    if out.size == 0:
        return
    shape, displacement = out.shape[1:], stages.displacement
    fill = convert_one(policy.fill, out.dtype)
    if source.array.size:
        samples = _sample(source, matrix, policy, shape, displacement is not None)
        sample = {"nearest": _nearest, "linear": _linear, "cubic": _cubic}[policy.mode]
    limits = [
        limit
        for clip in stages.clips
        for limit in _limits(clip.matrix[:3], Region.of_shape(clip.shape), shape)
    ]
    constant = policy.padding == "constant"
    if constant and displacement is None:
        limits += _limits(matrix, source.bounds, shape)
    fields = _fields(stages)
    runs = _along(source.array, matrix, shape, fields[0][0]) if fields else -1
    outside: NDArray[np.bool_] | None = None
    for block, index in _blocks(shape):
        target = out[(slice(None), *block)]
        if fields:
            places, outside = _displace(fields, matrix, index, runs), None
        else:
            places = [coordinate(row, *index) for row in matrix]
            if displacement is not None:
                places = list(places + displacement.at(index))
            places, outside = pull_back_points(places, stages.earlier)
        if constant and displacement is not None:  # before: sampling clamps in place
            for along, (first, stop) in zip(places, source.bounds, strict=True):
                beyond = (along < first - REACH) | (along > stop - 1 + REACH)
                outside = np.asarray(beyond if outside is None else outside | beyond)
        if source.array.size:
            sample(samples, places, target)
        else:
            target.fill(0 if policy.padding == "zeros" else fill)
        if outside is not None:
            target[:, outside] = fill
        for row, lowest, highest in limits:
            along = coordinate(row, *index)
            np.copyto(target, fill, where=(along < lowest) | (along > highest))


# Displacements, as in the kernel (``native/bend.h``): the same float32 operations in order.

_SHORT = 8  # least voxels of a run: shorter axes are replaced by the output's longest axis
_MOST_REACH = 124  # largest move in voxels to either side
# Orders of control axes, evaluated from the last, by the axis of runs (-1: several).
_ORDERS = {-1: (0, 1, 2), 0: (0, 2, 1), 1: (1, 2, 0), 2: (2, 1, 0)}
_Field = tuple[Displacement, NDArray[np.float64]]


def _fields(stages: KernelStages) -> list[_Field]:
    """Return the kernel's fields, each with the middle of its points; empty if none."""
    if stages.displacement is None or not stages.is_for_kernel:
        return []
    fields: list[Any] = [stages.displacement, *stages.earlier]
    ends = np.array([field.bounds for field in fields])
    reach = np.floor((ends[..., 1] - ends[..., 0]) / 2) + 2
    if (reach.sum(axis=0) > _MOST_REACH).any():
        return []
    return [*zip(fields, np.rint(ends.sum(axis=-1) / 2), strict=True)]


def _along(array: NDArray[Any], matrix: Matrix, shape: Sequence[int], field: Displacement) -> int:
    """Return the control axis that runs of the output follow; -1 if they cross several."""
    steps = [
        abs(step) if n > 1 else math.inf for n, step in zip(array.shape, array.strides, strict=True)
    ][1:]
    unit = max(range(3), key=lambda axis: (-steps[axis], axis))
    lane = max(range(3), key=lambda axis: (abs(matrix[unit, axis]), axis))
    if shape[lane] < _SHORT:
        lane = max(range(3), key=lambda axis: (shape[axis], axis))
    axes = np.flatnonzero(field.matrix[:3, lane])
    return -1 if len(axes) > 1 else int(axes.max(initial=0))


def _displace(fields: Sequence[_Field], matrix: Matrix, index: Index, along: int) -> list[Floats]:
    """Return the displaced coordinates of a block, rounded to grains."""
    affine = matrix.copy()
    for _, middle in fields:
        affine[:3, 3] += middle
    shape = np.broadcast_shapes(*(part.shape for part in index))
    places = [np.broadcast_to(coordinate(row, *index), shape) for row in affine]
    (field, middle), *earlier = fields
    on_grid = [np.broadcast_to(coordinate(row, *index), shape) for row in field.matrix[:3]]
    by = _bend(field, middle, on_grid, along)
    for field, middle in earlier:
        there = [(at + more) - far for at, more, far in zip(places, by, middle, strict=True)]
        on_grid = [
            ((row[3] + row[0] * there[0]) + row[1] * there[1]) + row[2] * there[2]
            for row in field.matrix[:3]
        ]
        by += _bend(field, middle, on_grid, -1)
    return [at + np.rint(more * GRAINS) / GRAINS for at, more in zip(places, by, strict=True)]


def _bend(field: Displacement, middle: Floats, on_grid: Sequence[Floats], along: int) -> Floats:
    """Return the displacement minus ``middle``, (3, ...) float32."""
    sizes = field.control.shape[1:]
    inside = [np.clip(at, 0, n - 1).ravel() for at, n in zip(on_grid, sizes, strict=True)]
    cells = [np.floor(at).astype(np.intp) for at in inside]
    at = [(a - cell - 0.5).astype(np.float32) for a, cell in zip(inside, cells, strict=True)]
    keys, which = np.unique(np.ravel_multi_index(tuple(cells), sizes), return_inverse=True)
    firsts = np.unravel_index(keys, sizes)
    taps = [
        np.clip(a[:, None] + np.arange(-1, 3), 0, n - 1) for a, n in zip(firsts, sizes, strict=True)
    ]
    (x, y, z), c = taps, middle.reshape(3, 1, 1, 1, 1)
    points = field.control[:, x[:, :, None, None], y[:, None, :, None], z[:, None, None]] - c
    for axis in (4, 3, 2):  # powers of the place from the middle of a cell
        p0, p1, p2, p3 = np.moveaxis(points, axis, 0)
        even = ((p0 + p3) + 23 * (p1 + p2)) / 48, ((p0 + p3) - (p1 + p2)) / 4
        odd = ((p3 - p0) + 5 * (p2 - p1)) / 8, ((p3 - p0) + 3 * (p1 - p2)) / 6
        points = np.stack([even[0], odd[0], even[1], odd[1]], axis)
    powers = np.moveaxis(points.astype(np.float32), 1, -1)  # (3, a, b, c, cells)

    def total(axes: Sequence[int], number: tuple[Any, ...]) -> Floats:
        if not axes:
            return np.asarray(powers[number].take(which))
        result = np.zeros(0, np.float32)
        for power in (3, 2, 1, 0):
            part = total(axes[1:], (*number[: axes[0] + 1], power, *number[axes[0] + 2 :]))
            if power == 3:
                result = part
            elif along < 0:
                result = _multiply_add(result, at[axes[0]], part)
            else:
                result = result * at[axes[0]] + part
        return result

    moves = [total(_ORDERS[along], (axis, 0, 0, 0)) for axis in range(3)]
    return np.stack(moves).reshape(3, *on_grid[0].shape)


def _multiply_add(a: Floats, b: Floats, c: Floats) -> Floats:
    """Return ``a * b + c`` of float32 rounded once, from float64 rounded to odd."""
    product, summand = a.astype(np.float64) * b, c.astype(np.float64)
    result = product + summand
    back = result - product
    error = (product - (result - back)) + (summand - back)
    bits = result.view(np.int64)
    towards = np.where(np.signbit(result) != np.signbit(error), -1, 1)
    bits += towards * ((error != 0) & (bits & 1 == 0))
    return result.astype(np.float32)


def _limits(
    matrix: Matrix, box: Region, shape: Sequence[int]
) -> list[tuple[NDArray[np.float64], float, float]]:
    """Return (row, lowest, highest) of each axis on which the output leaves a box."""
    lows, highs = extremes(affine3x4(matrix), shape)
    return [
        (row, a - REACH, b - 1 + REACH)
        for row, low, high, (a, b) in zip(matrix, lows, highs, box, strict=True)
        if low < a - REACH or high > b - 1 + REACH
    ]


def _blocks(shape: Sequence[int]) -> Iterator[tuple[tuple[slice, ...], Index]]:
    """Cut an output of (I, J, K) voxels into blocks of about ``BLOCK``, in C order."""
    # Yields each with its output indices, as three arrays that broadcast.
    k = min(shape[2], BLOCK)
    j = min(shape[1], max(1, BLOCK // k))
    i = min(shape[0], max(1, BLOCK // (j * k)))
    starts = (range(0, n, step) for n, step in zip(shape, (i, j, k), strict=True))
    for first in itertools.product(*starts):
        stop = [min(a + step, n) for a, step, n in zip(first, (i, j, k), shape, strict=True)]
        x, y, z = map(np.arange, first, stop)
        index = x[:, None, None], y[None, :, None], z[None, None, :]
        yield tuple(map(slice, first, stop)), index


def _nearest(samples: SampledArray, places: Sequence[Floats], out: NDArray[Any]) -> None:
    offset: Floats | int = samples.origin
    outside: NDArray[np.bool_] | None = None
    for axis, place in zip(samples.axes, places, strict=True):
        nearest = np.rint(axis.inside(place))
        if samples.zeros and axis.leaves:
            beyond = (nearest < axis.first) | (nearest > axis.last)
            outside = beyond if outside is None else outside | beyond
        np.clip(nearest, axis.start, axis.end, out=nearest)
        nearest -= axis.start
        nearest *= axis.stride
        offset = nearest + offset
    where = np.asarray(offset).astype(np.intp)
    for channel, target in zip(samples.channels, out, strict=True):
        voxels = np.take(channel, where, mode="clip")
        if samples.is_scaled:
            voxels = voxels.astype(np.float64) * samples.source.slope + samples.source.intercept
        target[...] = convert_dtype(voxels, out.dtype)
        if outside is not None:
            target[outside] = 0


def _linear(samples: SampledArray, places: Sequence[Floats], out: NDArray[Any]) -> None:
    real = real_type(out.dtype, samples.source.array.dtype)
    offset: Floats | int = samples.origin
    steps: list[tuple[int, Floats]] = []
    fade: Floats | None = None
    for axis, place in zip(samples.axes, places, strict=True):
        along = axis.inside(place)
        if samples.zeros and axis.leaves:
            inside = np.clip(np.minimum(along - axis.first, axis.last - along) + 1, 0, 1)
            fade = inside if fade is None else fade * inside
        lower = np.rint(along) if axis.is_single else np.floor(along)
        np.clip(lower, axis.start, axis.end if axis.is_single else axis.end - 1, out=lower)
        if not axis.is_single:
            along -= lower
            if axis.leaves:
                np.clip(along, 0, 1, out=along)
            steps.append((axis.stride, along.astype(real)))
            lower += axis.stride < 0  # on a backward axis the upper tap has the lower address
        lower -= axis.start
        lower *= axis.stride
        offset = lower + offset
    where = np.asarray(offset).astype(np.intp)
    for channel, target in zip(samples.channels, out, strict=True):
        with np.errstate(invalid="ignore"):
            values = _blend(channel, where, steps, real)
            # Zero times infinity gives NaN next to an infinite voxel: ignore taps of weight 0.
            if channel.dtype.kind == "f" and np.isnan(values).any():
                values = _blend(channel, where, steps, real, apart=True)
        if samples.is_scaled:
            values = values * samples.source.slope + samples.source.intercept
        if fade is not None:
            values = np.where(fade == 0, 0, values) * fade
        target[...] = convert_dtype(values, out.dtype)


def _blend(
    memory: NDArray[Any],
    where: NDArray[np.intp],
    steps: Sequence[tuple[int, Floats]],
    real: np.dtype[Any],
    *,
    apart: bool = False,
) -> Floats:
    """Interpolate along the axes of ``steps``, (stride, weight of the upper tap) each."""
    # ``where`` is the tap with the lowest address. ``apart`` keeps NaN to taps with a weight.
    if not steps:
        return np.take(memory, where, mode="clip").astype(real)
    (stride, weight), rest = steps[0], steps[1:]
    lower = _blend(memory[max(-stride, 0) :], where, rest, real, apart=apart)
    upper = _blend(memory[max(stride, 0) :], where, rest, real, apart=apart)
    if apart:
        mix = (upper - lower) * weight + lower
        alone = np.where(weight == 0, lower, np.where(weight == 1, upper, mix))
        return np.where(np.isnan(mix), alone, mix)
    # a + w (b - a), not (1 - w) a + w b: constants stay exact.
    upper -= lower
    upper *= weight
    upper += lower
    return upper


def _cubic(samples: SampledArray, places: Sequence[Floats], out: NDArray[Any]) -> None:
    zeros = samples.zeros
    taps = [
        _cubic_taps(axis, place, zeros) for axis, place in zip(samples.axes, places, strict=True)
    ]
    for channel, target in zip(samples.channels, out, strict=True):
        values = np.zeros(target.shape)
        for (i, wi), (j, wj), (k, wk) in itertools.product(*taps):
            voxels = np.take(channel, i + j + k + samples.origin, mode="clip").astype(np.float64)
            if zeros:  # a tap outside is the value zero, not the stored number
                voxels = voxels * samples.source.slope + samples.source.intercept
            values += wi * wj * wk * voxels
        values = values.astype(real_type(out.dtype, samples.source.array.dtype))
        if not zeros and samples.is_scaled:
            values = values * samples.source.slope + samples.source.intercept
        target[...] = convert_dtype(values, out.dtype)


def _cubic_taps(axis: Axis, place: Floats, zeros: bool) -> list[tuple[NDArray[np.intp], Floats]]:
    """Return the offset and the weight of each tap along one axis: four, or one."""
    if not zeros and not axis.reflects:
        place = np.clip(place, axis.first, axis.last)
    if axis.is_single:
        taps = [(np.rint(axis.inside(place)), np.ones(place.shape))]
    else:
        lower = np.floor(place)
        weights = _keys_weights(place - lower)
        taps = [(lower + n - 1, weight) for n, weight in enumerate(weights)]
    pairs = []
    for tap, weight in taps:
        if zeros:
            weight = weight * ((tap >= axis.first) & (tap <= axis.last))
        if axis.reflects:
            tap = fold(tap, axis.first, axis.last + 1)
        tap = (np.clip(tap, axis.start, axis.end) - axis.start) * axis.stride
        pairs.append((tap.astype(np.intp), weight))
    return pairs


def _keys_weights(t: Floats) -> list[Floats]:
    """Return the four weights of cubic convolution with a = -1/2 (Keys 1981)."""
    return [
        (-(t**3) + 2 * t**2 - t) / 2,
        (3 * t**3 - 5 * t**2 + 2) / 2,
        (-3 * t**3 + 4 * t**2 + t) / 2,
        (t**3 - t**2) / 2,
    ]


def real_type(result: np.dtype[Any], source: np.dtype[Any]) -> np.dtype[Any]:
    """Return the type for blending: float64 if source or result exceed float32."""
    is_wide = result.itemsize > 4 or (result.kind != "f" and result.itemsize == 4)
    return np.dtype(np.float64 if is_wide or source.itemsize > 4 else np.float32)


def one_tap_type(result: np.dtype[Any], source: SourceVoxels) -> np.dtype[Any]:
    """Return the type for scaling single stored values."""
    dtype = source.array.dtype
    is_exact = dtype.itemsize <= 2 or dtype == np.float32
    is_enough = result.itemsize <= 2 or result == np.float32
    is_scaled = (source.slope, source.intercept) != (1.0, 0.0)
    return np.dtype(np.float32 if is_exact and is_enough and not is_scaled else np.float64)
