"""Small matrices as plain floats: twelve of an affine map, nine of its linear part.

A plan multiplies a handful of 4x4 matrices. NumPy spends nearly all of that time on creating
arrays; plain floats take a tenth of it. Their order of sums is also the same on every machine,
which a library's matrix product does not promise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

Affine3x4 = tuple[
    float, float, float, float, float, float, float, float, float, float, float, float
]
"""The first three rows of an affine 4x4 matrix, one after another."""
Matrix3x3 = tuple[float, float, float, float, float, float, float, float, float]
"""The rows of a 3x3 matrix, one after another."""
Vector = tuple[float, float, float]

IDENTITY: Affine3x4 = (1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0)
NO_TURN: Matrix3x3 = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0)


def affine3x4(matrix: Any) -> Affine3x4:
    """Return the rows of a 3x4 or 4x4 matrix; rows are returned unchanged."""
    if type(matrix) is tuple and len(matrix) == len(IDENTITY):
        return matrix
    array = np.asarray(matrix, dtype=np.float64)
    if array.shape not in ((4, 4), (3, 4)):
        raise ValueError(f"an affine map is a matrix of 3x4 or 4x4, got {array.shape}")
    a, b, c, d, e, f, g, h, i, j, k, m = array[:3].ravel().tolist()
    return (a, b, c, d, e, f, g, h, i, j, k, m)


def matrix4x4(rows: Affine3x4) -> NDArray[np.float64]:
    """Return the 4x4 matrix of ``rows``, float64, read-only."""
    # Adding zero turns -0.0 into 0.0: equal matrices have equal bytes.
    flat = np.array((*rows, 0.0, 0.0, 0.0, 1.0)) + 0.0
    flat.setflags(write=False)
    return flat.reshape(4, 4)


linear_of: Callable[[Affine3x4], Matrix3x3] = itemgetter(0, 1, 2, 4, 5, 6, 8, 9, 10)
"""Return the linear part of the rows of an affine map."""


def compose(first: Affine3x4, second: Affine3x4) -> Affine3x4:
    """Return the matrix product ``first @ second``."""
    a, b, c, x, d, e, f, y, g, h, i, z = first
    j, k, m, u, n, o, p, v, q, r, s, w = second
    return (
        a * j + b * n + c * q,
        a * k + b * o + c * r,
        a * m + b * p + c * s,
        a * u + b * v + c * w + x,
        d * j + e * n + f * q,
        d * k + e * o + f * r,
        d * m + e * p + f * s,
        d * u + e * v + f * w + y,
        g * j + h * n + i * q,
        g * k + h * o + i * r,
        g * m + h * p + i * s,
        g * u + h * v + i * w + z,
    )


def product(first: Matrix3x3, second: Matrix3x3) -> Matrix3x3:
    """Return the matrix product of two 3x3 matrices."""
    a, b, c, d, e, f, g, h, i = first
    j, k, m, n, o, p, q, r, s = second
    return (
        a * j + b * n + c * q,
        a * k + b * o + c * r,
        a * m + b * p + c * s,
        d * j + e * n + f * q,
        d * k + e * o + f * r,
        d * m + e * p + f * s,
        g * j + h * n + i * q,
        g * k + h * o + i * r,
        g * m + h * p + i * s,
    )


def apply(linear: Matrix3x3, vector: Sequence[float]) -> Vector:
    """Return the matrix product of a 3x3 matrix and a vector."""
    a, b, c, d, e, f, g, h, i = linear
    x, y, z = vector
    return (a * x + b * y + c * z, d * x + e * y + f * z, g * x + h * y + i * z)


def inverse(linear: Matrix3x3) -> Matrix3x3:
    """Return the inverse of a 3x3 matrix; ``numpy.linalg.LinAlgError`` where there is none."""
    a, b, c, d, e, f, g, h, i = linear
    if not (b or c or d or f or g or h) and a and e and i:
        return (1.0 / a, 0.0, 0.0, 0.0, 1.0 / e, 0.0, 0.0, 0.0, 1.0 / i)
    # Cramer's rule: the rows of the inverse are cross products of the columns. The length of a
    # column is a factor of these, so unequal spacings cost no accuracy.
    u, v, w = e * i - f * h, f * g - d * i, d * h - e * g
    volume = a * u + b * v + c * w
    if not _SMALLEST < abs(volume) < _LARGEST:
        matrix = np.array(linear, dtype=np.float64).reshape(3, 3)
        a, b, c, d, e, f, g, h, i = np.linalg.inv(matrix).ravel().tolist()
        return (a, b, c, d, e, f, g, h, i)
    return (
        u / volume,
        (c * h - b * i) / volume,
        (b * f - c * e) / volume,
        v / volume,
        (a * i - c * g) / volume,
        (c * d - a * f) / volume,
        w / volume,
        (b * g - a * h) / volume,
        (a * e - b * d) / volume,
    )


# Products of three entries leave the range of doubles long before the inverse does.
_SMALLEST, _LARGEST = 1e-200, 1e200
