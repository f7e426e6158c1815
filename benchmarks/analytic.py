"""A volume that is known everywhere, and ten chains of which every output voxel's place is known.

Nothing here resamples, and nothing is asked of a library: a chain is where each voxel of its
output comes from in the world, worked out in float64 from what the chain means, and the truth is
the function at that place. Imported by accuracy.py and by the programs of the peers.

A chain of turns and zooms is written as content moves: ``forward`` maps, the first done first,
about the middle of the volume, in millimetres. Its output then holds ``f(F1^-1 F2^-1 ... x)``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

SHAPE = (64, 64, 48)
SPACING = (1.0, 1.0, 1.5)
AFFINE = np.diag([*SPACING, 1.0])
AFFINE[:3, 3] = (-20.0, 10.0, 5.0)
MIDDLE = AFFINE[:3, :3] @ ((np.array(SHAPE) - 1) / 2) + AFFINE[:3, 3]
RADIUS = 24.0
"""Millimetres about the middle in which results are judged: no chain takes these voxels from
outside of the volume, so that no way of padding counts."""
RANGE = 2.0
"""Largest value of the smooth function less its smallest, of what its waves allow."""
# Waves per millimetre along x, y and z, and how strong each is: 15 to 30 voxels long.
WAVES = (((0.045, 0.02, 0.01), 0.4), ((-0.02, 0.05, 0.02), 0.35), ((0.015, -0.01, 0.04), 0.25))
# What no grid of 4 mm can hold: 2.9 and 3.6 mm long.
FINE = (((0.32, 0.12, 0.0), 0.15), ((-0.1, 0.26, 0.02), 0.15))
# Ellipsoids of labels 1, 2 and 3: middle from the middle of the volume, and radii, in millimetres.
ORGANS = (
    ((0.0, 0.0, 0.0), (20.0, 17.0, 22.0)),
    ((6.0, 2.0, -4.0), (9.0, 7.0, 8.0)),
    ((-8.0, -4.0, 5.0), (5.0, 6.5, 6.0)),
)


def smooth(points: Floats) -> Floats:
    """Return the function at ``points`` (..., 3) in millimetres."""
    return _waves(points, WAVES)


def detailed(points: Floats) -> Floats:
    """Return the same with the fine waves."""
    return _waves(points, WAVES) + _waves(points, FINE)


def _waves(points: Floats, waves: Sequence[Any]) -> Floats:
    away = points - MIDDLE
    return np.asarray(
        sum(s * np.cos(2 * np.pi * (away @ np.array(wave)) + 3 * s) for wave, s in waves)
    )


def labels(points: Floats) -> NDArray[np.uint8]:
    """Return the label at ``points`` (..., 3) in millimetres."""
    found = np.zeros(points.shape[:-1], np.uint8)
    for number, (middle, radii) in enumerate(ORGANS, 1):
        inside = (((points - MIDDLE - middle) / radii) ** 2).sum(axis=-1) < 1
        found[inside] = number
    return found


def indices(shape: Sequence[int]) -> Floats:
    """Return (I, J, K, 3), the index of every voxel."""
    return np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1).astype(float)


def moved(matrix: Floats, points: Floats) -> Floats:
    """Return ``matrix`` (4x4) applied to ``points`` (..., 3)."""
    return np.asarray(points @ matrix[:3, :3].T + matrix[:3, 3])


def volume(function: Callable[[Floats], Any]) -> NDArray[Any]:
    """Return the function on the grid of the volume."""
    values = function(moved(AFFINE, indices(SHAPE)))
    return values if values.dtype == np.uint8 else values.astype(np.float32)


def turn(axis: int, degrees: float) -> Floats:
    """Return a right-handed turn about the middle, 4x4 in millimetres."""
    one, other = ((1, 2), (2, 0), (0, 1))[axis]
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    linear = np.eye(3)
    linear[one, [one, other]] = c, -s
    linear[other, [one, other]] = s, c
    return about_middle(linear)


def about_middle(linear: Floats) -> Floats:
    """Return a linear map as one that keeps the middle."""
    matrix = np.eye(4)
    matrix[:3, :3] = linear
    matrix[:3, 3] = MIDDLE - linear @ MIDDLE
    return matrix


def linear_part(matrix: Floats) -> Floats:
    """Return a 4x4 matrix without its shift: the map about the middle."""
    linear = np.eye(4)
    linear[:3, :3] = matrix[:3, :3]
    return linear


def pull_back(forward: Floats) -> Floats:
    """Return where voxels come from: index of the output to index of what a forward map moved."""
    return np.asarray(np.linalg.inv(AFFINE) @ np.linalg.inv(forward) @ AFFINE)


# An affine map of every kind, and a spline of 7 control points per axis: 4 intervals from face to
# face of the grid, one point beyond either face, up to 4 mm each way. These faces are an eighth of
# a voxel further out than the outer voxels', as ITK has them (itkBSplineTransformInitializer.hxx).
GENERAL = about_middle(np.array([[1.05, 0.1, 0.0], [-0.06, 0.95, 0.12], [0.05, -0.08, 1.02]]))
POINTS = 7
CONTROL = np.random.default_rng(5).uniform(-4, 4, (3, POINTS, POINTS, POINTS))
_INTERVALS = POINTS - 3
_FACE = 0.5 + 0.125
CONTROL_MATRIX = np.diag([*(_INTERVALS / (n - 1 + 2 * _FACE) for n in SHAPE), 1.0])
CONTROL_MATRIX[:3, 3] = [_FACE * _INTERVALS / (n - 1 + 2 * _FACE) + 1 for n in SHAPE]
CONTROL_VOXELS = CONTROL / np.reshape(SPACING, (3, 1, 1, 1))
"""The same, in voxels."""


def displacement(index: Floats) -> Floats:
    """Return the spline at voxel indices (I, J, K, 3), in millimetres, as its definition has it."""
    shape = index.shape[:3]
    tables = []
    for axis in range(3):
        u = CONTROL_MATRIX[axis, axis] * np.arange(shape[axis]) + CONTROL_MATRIX[axis, 3]
        distance = np.abs(u[:, None] - np.arange(POINTS))
        near = 2 / 3 - distance**2 + distance**3 / 2
        far = np.clip(2 - distance, 0, None) ** 3 / 6
        tables.append(np.where(distance < 1, near, far))
    return np.einsum("dabc,ia,jb,kc->ijkd", CONTROL, *tables)


@dataclass(frozen=True)
class Chain:
    """What a chain means."""

    name: str
    """Its row."""
    shape: tuple[int, int, int]
    """Of the output."""
    place: Callable[[Floats], Floats]
    """Index of the output (I, J, K, 3) to millimetres in the volume."""
    forward: tuple[Floats, ...] = ()
    """Maps of content, the first done first, if it is a chain of these."""
    truth: Callable[[Floats], Floats] = smooth
    """What the output is to hold."""
    stored: Callable[[Floats], Floats] = smooth
    """What the volume holds."""
    has_labels: bool = True
    """Whether labels are changed, too."""


def _of_maps(name: str, *forward: Floats) -> Chain:
    whole = AFFINE
    for matrix in reversed(forward):
        whole = np.linalg.inv(matrix) @ whole
    return Chain(name, SHAPE, lambda index: moved(whole, index), forward)


def _of_index(name: str, shape: tuple[int, int, int], source: Callable[[Floats], Any]) -> Chain:
    def place(index: Floats) -> Floats:
        i, j, k = source(index)
        return moved(AFFINE, np.stack([i, j, k], axis=-1))

    return Chain(name, shape, place)


def _elastic(index: Floats) -> Floats:
    return moved(np.linalg.inv(GENERAL), moved(AFFINE, index) + displacement(index))


SPACED = (0.8, 0.8, 1.2)
SPACED_SHAPE = (80, 80, 60)
CROP = ((10, 8, 12), (66, 52, 70))
PADDED = 3
COARSE_SHAPE = (16, 16, 12)
FACTOR = 2


def _spaced(index: Any) -> tuple[Any, Any, Any]:
    i, j, k = ((n + 0.5) * 0.8 - 0.5 for n in index)
    return i, j, k


def _cropped(index: Floats) -> tuple[Any, Any, Any]:
    a, b, c = (index[..., axis] + CROP[0][axis] for axis in range(3))
    # P, I, R: against y, against z, along x.
    return _spaced((c, SPACED_SHAPE[1] - 1 - a, SPACED_SHAPE[2] - 1 - b))


def _quarter(index: Floats) -> tuple[Any, Any, Any]:
    a, b, c = (index[..., axis] - PADDED for axis in range(3))
    # rot90 from the first axis to the second, of the volume mirrored along the first.
    return SHAPE[0] - 1 - b, SHAPE[1] - 1 - a, c


CHAINS = (
    _of_maps("rotate", turn(0, 20)),
    _of_maps("rotate, zoom", turn(2, 20), about_middle(np.eye(3) * 1.2)),
    Chain("affine, elastic", SHAPE, _elastic, (GENERAL,)),
    _of_index("spacing", SPACED_SHAPE, lambda index: _spaced(np.moveaxis(index, -1, 0))),
    _of_index("spacing, orientation, crop", (56, 44, 58), _cropped),
    _of_index("flip, rotate90, pad", (70, 70, 54), _quarter),
    Chain("anisotropy", SHAPE, lambda index: moved(AFFINE, index), has_labels=False),
    Chain("low_resolution", SHAPE, lambda index: moved(AFFINE, index), has_labels=False),
    _of_maps("rotate three times", turn(0, 15), turn(1, 10), turn(2, 20)),
    Chain(
        "resize to a quarter, antialias",
        COARSE_SHAPE,
        lambda index: moved(AFFINE, 4 * index + 1.5),
        stored=detailed,
    ),
)


def judged(chain: Chain, image: NDArray[Any], label: NDArray[Any] | None) -> dict[str, float]:
    """Return the errors of one result, of the range, and the mean Dice of the labels.

    Parameters
    ----------
    chain
        What was done.
    image, label
        (I, J, K): what came out; None where labels are left alone.
    """
    if image.shape != chain.shape:
        raise SystemExit(f"{chain.name}: shape {image.shape}, expected {chain.shape}")
    place = chain.place(indices(chain.shape))
    inside = ((place - MIDDLE) ** 2).sum(axis=-1) < RADIUS**2
    error = (image.astype(np.float64) - chain.truth(place))[inside] / RANGE
    found = {"rmse": float(np.sqrt((error**2).mean())), "max": float(np.abs(error).max())}
    if label is not None and chain.has_labels:
        truth, given = labels(place)[inside], np.asarray(label)[inside]
        found["dice"] = float(np.mean([_dice(truth == n, given == n) for n in (1, 2, 3)]))
        found["invented"] = float(np.isin(given, (0, 1, 2, 3), invert=True).sum())
    return found


def _dice(one: NDArray[np.bool_], other: NDArray[np.bool_]) -> float:
    return 2 * float((one & other).sum()) / float(one.sum() + other.sum())


def answer(results: dict[str, dict[str, dict[str, float]]], **versions: str) -> None:
    """Print what was measured: by way, by chain, and the versions that did it."""
    json.dump({"results": results, "versions": versions}, sys.stdout)
    print()
