"""Resampling equals an independent oracle in float64: every type, order, class, padding and mode.

The oracle extends the volume to all integers by its padding rule and adds up taps, the slow and
obvious way. It shares no code with the slow path or with the kernel.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from native_paths import paths_here
from numpy.typing import NDArray
from sampled import sampled

from voxpipe.core import Region
from voxpipe.spatial import Displacement, Epilogue, KernelStages, Policy, SourceVoxels, resample

STORED = ["u1", "i1", "u2", "i2", "u4", "i4", "f2", "f4", "f8"]
PADDINGS = ["border", "reflection", "constant", "zeros"]
SHAPE = (3, 4, 18)  # longer than any vector on one axis
VOLUME = (5, 7, 11)
FIRST = (-2, 1, 0)
EPILOGUE = Epilogue(scale=0.5, shift=3.0, low=-200.0, high=400.0)


def turned(*angles: float) -> NDArray[np.float64]:
    """A rotation by odd angles, so that no coordinate lies half way between two voxels."""
    matrix = np.eye(3)
    for angle, (a, b) in zip(angles, ((0, 1), (1, 2), (0, 2)), strict=True):
        one = np.eye(3)
        one[[a, b], [a, b]] = np.cos(angle)
        one[a, b], one[b, a] = -np.sin(angle), np.sin(angle)
        matrix = matrix @ one
    return matrix


def field(towards: NDArray[np.float64]) -> Displacement:
    matrix = np.eye(4)
    matrix[:3, :3] = towards
    matrix[:3, 3] = 0.217, -0.391, 0.503
    return Displacement(np.random.default_rng(3).normal(0, 1.7, (3, 4, 3, 5)), matrix)


CLASSES: dict[str, tuple[Any, Any, Displacement | None]] = {
    "copy": (np.eye(3), (1, 2, -2), None),
    "flip": (np.diag([-1.0, 1, -1]), (3, 2, 12), None),
    "transpose": (np.eye(3)[[1, 2, 0]], (1, -2, 4), None),
    "zoom": (np.diag([0.713, -1.291, 0.633]), (0.117, 4.219, -0.331), None),
    "affine": (turned(0.31, -0.47, 0.23) * 0.871, (0.717, 1.119, -1.331), None),
    "displaced": (turned(0.31, -0.47, 0.23), (0.717, 1.119, -1.331), field(np.eye(3) * 0.23)),
    "displaced, turned": (np.eye(3), (0.31, 0.77, -2.13), field(turned(0.2, 0.4, -0.3) * 0.21)),
}
# Output type, slope and intercept, epilogue. The last is stored as uint16 bits.
RESULTS = {
    "f4": ((1.0, 0.0), None),
    "stored": ((1.0, 0.0), None),
    "f2": ((0.37, -5.25), None),
}


@dataclass(frozen=True)
class Bounds:
    """The voxels that are there, as indices along each axis."""

    first: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def last(self) -> list[int]:
        return [a + n - 1 for a, n in zip(self.first, self.shape, strict=True)]

    def tap(self, index: NDArray[np.int64], padding: str) -> tuple[NDArray[np.int64], Any]:
        """The flat index of the voxel at any integer index (3, N), and whether it counts."""
        inside = np.ones(index.shape[1], dtype=bool)
        flat = np.zeros(index.shape[1], dtype=np.int64)
        for one, a, length in zip(index, self.first, self.shape, strict=True):
            inside &= (one >= a) & (one < a + length)
            there = (one - a) % (2 * length)
            mirrored = np.minimum(there, 2 * length - 1 - there)
            place = mirrored if padding == "reflection" else np.clip(one - a, 0, length - 1)
            flat = flat * length + place
        return flat, inside if padding == "zeros" else True


def spline(t: NDArray[np.float64]) -> NDArray[np.float64]:
    """The uniform cubic B-spline about zero."""
    t = np.abs(t)
    return np.where(t < 1, 2 / 3 - t**2 + t**3 / 2, np.where(t < 2, (2 - t) ** 3 / 6, 0))


def keys(t: NDArray[np.float64]) -> NDArray[np.float64]:
    """Cubic convolution with a = -1/2, about zero."""
    t = np.abs(t)
    far = -0.5 * t**3 + 2.5 * t**2 - 4 * t + 2
    return np.where(t < 1, 1.5 * t**3 - 2.5 * t**2 + 1, np.where(t < 2, far, 0))


def hat(t: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.maximum(0, 1 - np.abs(t))


def places(matrix: Any, shift: Any, moved: Displacement | None, shape: Any) -> NDArray[np.float64]:
    """The coordinates of every output voxel, (3, N)."""
    index = np.indices(shape, dtype=np.float64).reshape(3, -1)
    where: NDArray[np.float64] = matrix @ index + np.array(shift, dtype=np.float64)[:, None]
    if moved is None:
        return where
    control, size = moved.control, moved.control.shape[1:]
    at = moved.matrix[:3, :3] @ index + moved.matrix[:3, 3:]
    at = np.clip(at, 0, np.array(size)[:, None] - 1)
    for corner in itertools.product(*(range(-2, n + 2) for n in size)):
        weight = np.prod([spline(u - n) for u, n in zip(at, corner, strict=True)], axis=0)
        point = [min(max(n, 0), m - 1) for n, m in zip(corner, size, strict=True)]
        where = where + weight * control[:, point[0], point[1], point[2]][:, None]
    return where


@functools.cache
def places_of(kind: str) -> NDArray[np.float64]:
    """Those of a class, made once: what is stored, and how it is read, does not enter."""
    where = places(*CLASSES[kind], SHAPE)
    where.setflags(write=False)
    return where


Taps = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]]


def taps_at(where: NDArray[np.float64], bounds: Bounds, mode: str, padding: str) -> Taps:
    """The voxels (T, N) and weights at coordinates (3, N), and which of these lie outside."""
    first = np.array(bounds.first)[:, None]
    last = np.array(bounds.last)[:, None]
    outside = np.any((where < first - 0.5) | (where > last + 0.5), axis=0)
    if padding in ("border", "constant"):
        where = np.clip(where, first, last)
    if mode == "nearest":
        flat, counts = bounds.tap(np.rint(where).astype(np.int64), padding)
        return flat[None], np.ones((1, flat.size)) * counts, outside
    shape, taps = (hat, (0, 1)) if mode == "linear" else (keys, (-1, 0, 1, 2))
    lower = np.floor(where)
    voxels, weights = [], []
    for corner in itertools.product(taps, repeat=3):
        tap = lower + np.array(corner)[:, None]
        flat, counts = bounds.tap(tap.astype(np.int64), padding)
        voxels.append(flat)
        weights.append(np.prod(shape(where - tap), axis=0) * counts)
    return np.array(voxels), np.array(weights), outside


@functools.cache
def taps_of(kind: str, mode: str, padding: str) -> Taps:
    """Those of a class in the small volume, made once: its values do not enter."""
    return taps_at(places_of(kind), Bounds(FIRST, VOLUME), mode, padding)


def oracle(values: NDArray[np.float64], taps: Taps, policy: Policy) -> NDArray[np.float64]:
    """The values (C, N): the sum of all taps of a volume (C, Z, Y, X)."""
    voxels, weights, outside = taps
    found: NDArray[np.float64] = (values.reshape(len(values), -1)[:, voxels] * weights).sum(axis=1)
    if policy.padding == "constant":
        found[:, outside] = policy.fill
    return found


def orders(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """The same voxels in C order, in F order, backwards, and with gaps."""
    yield np.ascontiguousarray(array)
    yield np.asfortranarray(array)
    yield np.ascontiguousarray(array.transpose(2, 0, 3, 1)[::-1, :, ::-1]).transpose(1, 3, 0, 2)[
        :, :, ::-1, ::-1
    ]
    room = np.zeros([2 * n + 1 for n in array.shape], array.dtype)
    room[:, 1::2, 1::2, 1::2][: array.shape[0]] = array
    yield room[: array.shape[0], 1::2, 1::2, 1::2]


def stored_values(dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    """Voxels from the whole range of an integer type; floats within a thousand."""
    rng = np.random.default_rng(11)
    if dtype.kind == "f":
        return rng.uniform(-1000, 1000, shape).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def paths() -> list[str]:
    return ["0", *paths_here()]


def tolerance(values: NDArray[np.float64], expected: NDArray[np.float64], result: str) -> Any:
    """1e-5 of the range, and half a step of the output type."""
    allowed = 1e-5 * max(float(np.ptp(values)), float(np.abs(values).max()))
    if result[0] in "iu":
        return allowed + 0.5
    digits = 11 if result == "f2" else 53  # of the fraction, the leading one included
    return allowed + np.abs(expected) * 2.0**-digits


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("name", sampled(STORED))
def test_every_class_order_padding_and_result(
    name: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within 1e-5 of the range, on every path of this processor and on the slow one."""
    stored, first = np.dtype(name), FIRST
    array = stored_values(stored, (2, *VOLUME))
    bounds = Region(first, tuple(a + n for a, n in zip(first, VOLUME, strict=True)))
    compared = 0
    for (kind, (matrix, shift, moved)), padding in itertools.product(CLASSES.items(), PADDINGS):
        policy = Policy(mode, padding, 17.0)
        pull_back = np.column_stack([matrix, shift])
        taps = taps_of(kind, mode, padding)
        of_oracle: dict[tuple[float, float], NDArray[np.float64]] = {}  # several results share one
        for result, (scaling, epilogue) in RESULTS.items():
            if result == "f2" and stored.itemsize >= 4 and stored.kind != "f":
                scaling = (1e-6, 0.125)  # into what sixteen bits hold
            values = array.astype(np.float64) * scaling[0] + scaling[1]
            if scaling not in of_oracle:
                of_oracle[scaling] = oracle(values, taps, policy)
            expected = of_oracle[scaling]
            if epilogue is not None:
                expected = np.clip(expected * epilogue.scale + epilogue.shift, -200, 400)
            expected = expected.reshape(2, *SHAPE)
            typed = name if result == "stored" else result
            allowed = tolerance(values, expected, typed)
            if typed[0] in "iu":
                limits = np.iinfo(typed)
                expected = np.clip(expected, limits.min, limits.max)
            for voxels, path in itertools.product(orders(array), paths()):
                monkeypatch.setenv("VOXPIPE_NATIVE", path)
                out = np.full((2, *SHAPE), 77, typed)
                source = SourceVoxels(voxels, first, bounds, *scaling)
                resample(
                    *(source, pull_back, policy, out),
                    KernelStages(displacement=moved),
                    epilogue=epilogue,
                )
                error = np.abs(out.astype(np.float64) - expected)
                assert np.all(error <= allowed), (kind, padding, result, path, error.max())
                compared += 1

    assert compared == len(CLASSES) * len(PADDINGS) * len(RESULTS) * 4 * len(paths())


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("kind", ["zoom", "affine", "displaced", "displaced, turned"])
def test_the_far_end_of_an_axis_of_ten_thousand_voxels(
    kind: str, mode: str, axis: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Coordinates of four digits before the point lose nothing behind it."""
    shape = [6, 6, 6]
    shape[axis] = 10_000
    array = stored_values(np.dtype("i2"), (1, *shape))
    matrix, _, moved = CLASSES[kind]
    shift = np.array([2.113, 2.271, 1.831])
    shift[axis] = 9_990.417
    where = places(matrix, shift, moved, SHAPE)
    policy = Policy(mode, "reflection")
    taps = taps_at(where, Bounds((0, 0, 0), tuple(shape)), mode, policy.padding)
    expected = oracle(array.astype(np.float64), taps, policy)

    for path in paths():
        monkeypatch.setenv("VOXPIPE_NATIVE", path)
        out = np.empty((1, *SHAPE), np.float32)
        source = SourceVoxels(array, (0, 0, 0), Region.of_shape(shape))
        resample(
            source, np.column_stack([matrix, shift]), policy, out, KernelStages(displacement=moved)
        )
        assert np.abs(out.ravel() - expected.ravel()).max() <= 1e-5 * np.ptp(array.astype("f8"))
