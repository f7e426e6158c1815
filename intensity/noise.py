"""Noise and dropped boxes: random numbers computed from the places of voxels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.validate import ParameterRange, as_number, bounds_of, parse_range
from . import native_values as native
from .native_values import Change
from .value_op import ANY, FROM_0, Facts, Params, RandomValueOp

# Normal numbers per voxel of a lattice, independent of the patch.
#
# A voxel's number is a function of a key and its index, so overlapping patches agree in all
# workers. Four voxels along the last axis share one call of Philox 4x32-10. Its four words become
# four normal numbers (Box & Muller, 1958). NumPy is the reference; ``native/noise.h`` takes the
# same steps in the same order, and gives the same bits.
#
# Salmon, Moraes, Dror & Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.

_LOW, _HIGH = 0xFFFFFFFF, 32
_ROUNDS = 10
_FACTORS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_ROOT_HALF = np.int32(0x3F3504F3)  # the bits of sqrt(1/2)
_MANTISSA = np.int32(0x007FFFFF)
# Cephes Mathematical Library (S. Moshier): logf by pairs from the lowest power, sinf and cosf from
# the highest.
_LOG = (
    (-2.4999993993e-1, 3.3333331174e-1),
    (-1.6668057665e-1, 2.0000714765e-1),
    (-1.2420140846e-1, 1.4249322787e-1),
    (-1.1514610310e-1, 1.1676998740e-1),
)
_LOG_LAST = 7.0376836292e-2
_SINE = (-1.9515295891e-4, 8.3321608736e-3, -1.6666654611e-1)
_COSINE = (2.443315711809948e-5, -1.388731625493765e-3, 4.166664568298827e-2)
_LN_2 = (-2.12194440e-4, 0.693359375)  # in two parts, of which the larger has few digits
_PER_31_BITS = 2.0**-31
_QUARTER_TURN = np.pi / 2 / 2.0**32

Words = tuple[NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32], NDArray[np.uint32]]


def philox(counter: tuple[Any, Any, Any, Any], key: int) -> Words:
    """Return the four words of Philox 4x32-10 for counters of any shapes that broadcast."""
    a, b, c, d = np.broadcast_arrays(*(np.asarray(n, np.int64).astype(np.uint64) for n in counter))
    a, b, c, d = (n & np.uint64(_LOW) for n in (a, b, c, d))
    low, high = key & _LOW, key >> _HIGH & _LOW
    for _ in range(_ROUNDS):
        p, q = a * np.uint64(_FACTORS[0]), c * np.uint64(_FACTORS[1])
        a, b, c, d = (
            q >> np.uint64(_HIGH) ^ b ^ np.uint64(low),
            q & np.uint64(_LOW),
            p >> np.uint64(_HIGH) ^ d ^ np.uint64(high),
            p & np.uint64(_LOW),
        )
        low, high = low + _WEYL[0] & _LOW, high + _WEYL[1] & _LOW
    x, y, z, w = (n.astype(np.uint32) for n in (a, b, c, d))
    return x, y, z, w


def normals(
    shape: tuple[int, ...], corner: tuple[int, int, int], key: int, plane: int = 0
) -> NDArray[np.float32]:
    """Return a normal number for every voxel of a patch, float32.

    ``corner`` is the first voxel's lattice index, ``key`` below 2^64; planes are independent.
    """
    count, *size = shape
    first, last = corner[2] >> 2, corner[2] + size[2] - 1 >> 2
    words = philox(
        (
            (corner[0] + np.arange(size[0]))[None, :, None, None],
            (corner[1] + np.arange(size[1]))[None, None, :, None],
            np.arange(first, last + 1)[None, None, None, :],
            (2 * np.arange(count) + plane)[:, None, None, None],
        ),
        key,
    )
    even, odd = _pair(words[0], words[1]), _pair(words[2], words[3])
    four = np.stack([*even, *odd], axis=-1)
    rows = four.reshape(*four.shape[:3], -1)
    start = corner[2] & 3
    return np.ascontiguousarray(rows[..., start : start + size[2]])


def _horner(coefficients: tuple[float, ...], x: NDArray[np.float32]) -> NDArray[np.float32]:
    y = np.full_like(x, coefficients[0])
    for coefficient in coefficients[1:]:
        y = y * x + np.float32(coefficient)
    return y


def log_of_mantissa(
    number: NDArray[np.float32],
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Return the logarithm of a number's mantissa, less ``x - z / 2``; its exponent, x and z.

    The mantissa is from sqrt(1/2) to sqrt(2), ``x`` it less 1, and ``z`` the square of that.
    """
    bits = number.view(np.int32) - _ROOT_HALF
    e = (bits >> np.int32(23)).astype(np.float32)
    x = ((bits & _MANTISSA) + _ROOT_HALF).view(np.float32) - np.float32(1)
    z = x * x
    zz = z * z
    a, b, c, d = (x * np.float32(odd) + np.float32(even) for odd, even in _LOG)
    y = (a + b * z) + (c + d * z + zz * np.float32(_LOG_LAST)) * zz
    return y * x * z, e, x, z


def _radius(word: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Return sqrt(-2 ln u) for u in (0, 1], of 31 bits."""
    u = (word >> np.uint32(1) | np.uint32(1)).astype(np.int32).astype(np.float32)
    y, e, x, z = log_of_mantissa(u * np.float32(_PER_31_BITS))
    y = y + e * np.float32(_LN_2[0])
    y = y + z * np.float32(-0.5)
    log = x + y + e * np.float32(_LN_2[1])
    radius: NDArray[np.float32] = np.sqrt(np.maximum(log * np.float32(-2), np.float32(0)))
    return radius


def _pair(
    one: NDArray[np.uint32], other: NDArray[np.uint32]
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return two normal numbers of two words."""
    r = _radius(one)
    # The top bits choose a quarter of the circle, the others an angle of at most 1/8 of it.
    x = (other << np.uint32(2)).view(np.int32).astype(np.float32) * np.float32(_QUARTER_TURN)
    z = x * x
    sine = _horner(_SINE, z) * z * x + x
    cosine = _horner(_COSINE, z) * z * z + z * np.float32(-0.5) + np.float32(1)
    quarter = other >> np.uint32(30)
    swap = (quarter & np.uint32(1)).astype(bool)
    c, s = np.where(swap, sine, cosine), np.where(swap, cosine, sine)
    sign_c = (quarter + np.uint32(1)) >> np.uint32(1) & np.uint32(1)
    even = r * (c.view(np.uint32) ^ sign_c << np.uint32(31)).view(np.float32)
    odd = r * (s.view(np.uint32) ^ quarter >> np.uint32(1) << np.uint32(31)).view(np.float32)
    return even, odd


@dataclass(frozen=True)
class VoxelNoise:
    """Noise of voxels of a lattice: ``value + mean + std n``, or for Rician noise the magnitude.

    That is of a complex number of which both parts have noise, ``(value + std n, std m)``.
    """

    corner: tuple[int, int, int]
    """Lattice index of the first voxel."""
    key: int
    """Below 2^64."""
    std: float
    mean: float = 0.0
    rician: bool = False

    name: ClassVar[str] = "noise"

    def native_step(self) -> bytes:
        kind = native.RICIAN if self.rician else native.GAUSSIAN
        return native.pack_step(kind, (self.mean, self.std), key=self.key, corner=self.corner)

    def in_numpy(self, channel: NDArray[np.float32], number: int) -> None:
        std, shape, plane = np.float32(self.std), (1, *channel.shape), 2 * number
        n = normals(shape, self.corner, self.key, plane)[0] * std
        if not self.rician:
            channel += n + np.float32(self.mean)
            return
        real = channel + n
        imaginary = normals(shape, self.corner, self.key, plane + 1)[0] * std
        np.sqrt(real * real + imaginary * imaginary, out=channel)


@dataclass(frozen=True)
class Noise(RandomValueOp):
    """Add normal numbers, independent from voxel to voxel of the result.

    They belong to voxels of the lattice: before patches are cut, overlapping patches agree. It
    is done after later spatial ops, so its strength does not depend on their interpolation.

    Examples
    --------
    >>> Noise((0, 0.1), p=0.5).describe()
    'noise std (0.0, 0.1) (p=0.5)'
    """

    std: ParameterRange
    """Standard deviation, in the units of the values: a number >= 0, or (low, high)."""
    mean: ParameterRange = 0.0
    """A number, or (low, high)."""

    name: ClassVar[str] = "noise"
    amounts: ClassVar[Any] = {"std": FROM_0, "mean": ANY}
    draws_key: ClassVar[bool] = True

    def changes(self, params: Params, facts: Facts) -> tuple[Change, ...]:
        key, _ = facts.key_from(params["key"])
        return (VoxelNoise(facts.corner, key, params["std"], params["mean"]),)

    def describe(self) -> str:
        more = {} if self.mean == 0 else {"mean": self.mean}
        return self.in_words(std=self.std, **more)


@dataclass(frozen=True)
class RicianNoise(RandomValueOp):
    """The noise of magnitude images: normal noise in both parts of a complex number.

    ``sqrt((value + a) ** 2 + b ** 2)``, with ``a`` and ``b`` normal, of mean 0 and deviation
    ``std``. For a value ``v`` it follows the Rice distribution of ``v`` and ``std``.

    References
    ----------
    Gudbjartsson and Patz, "The Rician distribution of noisy MRI data", Magnetic Resonance in
    Medicine 34 (1995).

    Examples
    --------
    >>> RicianNoise(0.1).describe()
    'rician_noise std 0.1'
    """

    std: ParameterRange
    """Standard deviation of either part: a number >= 0, or (low, high)."""

    name: ClassVar[str] = "rician_noise"
    amounts: ClassVar[Any] = {"std": FROM_0}
    draws_key: ClassVar[bool] = True

    def changes(self, params: Params, facts: Facts) -> tuple[Change, ...]:
        key, _ = facts.key_from(params["key"])
        return (VoxelNoise(facts.corner, key, params["std"], rician=True),)


Triple = tuple[int, int, int]

PER_WORD = 2.0**-32


@dataclass(frozen=True)
class DropBoxes(RandomValueOp):
    """Fill boxes with one value, strewn evenly over the lattice of the result.

    Space is cut into cubes as large as the largest box; each holds the start of at most one box. So
    overlapping patches agree. Boxes follow the axes of the result.

    With edges from ``low`` to ``high``, cubes are ``high`` voxels wide, and the chance of a box in
    each is ``fraction / ((low + high) / (2 high)) ** 3``. It begins at any voxel of its cube, and
    each of its edges is any whole number from ``low`` to ``high``, all equally likely.

    References
    ----------
    DeVries and Taylor, "Improved regularization of convolutional neural networks with cutout",
    arXiv:1708.04552 (2017): one box there, as many as make up a fraction here.

    Examples
    --------
    >>> DropBoxes((4, 12), 0.1).describe()
    'drop_boxes size (4.0, 12.0) fraction 0.1 fill 0'
    """

    size: ParameterRange
    """Edge in voxels, drawn for each edge of each box: a whole number >= 1, or (low, high)."""
    fraction: ParameterRange
    """Part of all voxels to drop, overlaps not counted: a number, or (low, high)."""
    fill: float = 0.0
    """The value inside."""

    name: ClassVar[str] = "drop_boxes"
    amounts: ClassVar[Any] = {"fraction": {"least": 0.0}}
    draws_key: ClassVar[bool] = True
    checks: ClassVar[Any] = {"size": partial(parse_range, least=1), "fill": as_number}

    def __post_init__(self) -> None:
        super().__post_init__()
        if any(edge != round(edge) for edge in bounds_of(self.size)):
            msg = f"size is a whole number of voxels, or (low, high) of such, got {self.size!r}"
            raise ValueError(msg)
        highest = self.fraction[1] if isinstance(self.fraction, tuple) else self.fraction
        if highest > self._most:
            raise ValueError(
                f"fraction is a part of all voxels, and no number of boxes: those of size "
                f"{self.size} take away at most {self._most:.3g}, got {highest!r}"
            )

    @property
    def _edges(self) -> tuple[int, int]:
        low, high = bounds_of(self.size)
        return round(low), round(high)

    @property
    def _most(self) -> float:
        """The fraction where every cube has a box."""
        low, high = self._edges
        return float(((low + high) / 2 / high) ** 3)

    def apply(self, array: NDArray[Any], params: Params, facts: Facts) -> NDArray[Any]:
        shape = (array.shape[1], array.shape[2], array.shape[3])
        key, _ = facts.key_from(params["key"])
        for box in self._boxes(shape, params["fraction"] / self._most, facts.corner, key):
            array[(slice(None), *box)] = self.fill
        return array

    def _boxes(
        self, shape: Triple, chance: float, corner: Triple, key: int
    ) -> Iterator[tuple[slice, ...]]:
        """Yield the boxes that reach into an array, as slices of it."""
        low, high = self._edges
        cells = [
            np.arange(math.floor((c - high) / high), (c + n - 1) // high + 1)
            for c, n in zip(corner, shape, strict=True)
        ]
        i, j, k = np.meshgrid(*cells, indexing="ij")
        first = [w * PER_WORD for w in philox((i, j, k, np.zeros_like(i)), key)]
        second = [w * PER_WORD for w in philox((i, j, k, np.ones_like(i)), key)]
        for at in np.argwhere(first[3] < chance):
            place = tuple(at)
            slices = []
            for axis in range(3):
                size = low + int(second[axis][place] * (high - low + 1))
                begin = cells[axis][at[axis]] * high + int(first[axis][place] * high)
                start = int(begin) - corner[axis]
                slices.append(slice(max(start, 0), max(start + size, 0)))
            yield tuple(slices)


OPS = (DropBoxes, Noise, RicianNoise)
