"""Brightness, Contrast, Clamp, Gamma, BiasField: another scale of values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core import Grid
from ..core.errors import BadRecord
from ..core.validate import ParameterRange, as_flag, is_integer, or_none, parse_range, value_at
from . import native_values as native
from .native_values import ByStatistics, Change, ChannelStatistics
from .noise import log_of_mantissa
from .normalize import as_rising
from .value_op import (
    ABOVE_0,
    ANY,
    FROM_0,
    NUMBER_OR_NONE,
    PATCH,
    VOLUME,
    AffineValueOp,
    Epilogue,
    Facts,
    Params,
    RandomValueOp,
    TwoSidedOp,
    as_over,
)


@dataclass(frozen=True)
class Brightness(TwoSidedOp, AffineValueOp):
    """``value * factor + add``, the same for all voxels.

    Examples
    --------
    >>> Brightness((0.75, 1.25), p=0.15).describe()
    'brightness factor (0.75, 1.25) add 0 (p=0.15)'
    """

    factor: ParameterRange = 1.0
    """A number, or (low, high)."""
    add: ParameterRange = 0.0
    """A number, or (low, high), in the units of the values."""

    name: ClassVar[str] = "brightness"
    about_1: ClassVar[str] = "factor"
    amounts: ClassVar[Any] = {"factor": ANY, "add": ANY}

    def as_epilogue(self, params: Params, facts: Facts) -> Epilogue:
        return Epilogue(params["factor"], params["add"])


@dataclass(frozen=True)
class Contrast(TwoSidedOp, AffineValueOp):
    """``(value - middle) * factor + middle``.

    The mean of a CT is near that of air, far below the mean of a patch inside the body. With
    ``statistics_over="patch"``, as in nnU-Net, mean and range are those of each channel of the
    op's input, with the halo of later filters. Overlapping patches then differ.

    Examples
    --------
    >>> Contrast((0.75, 1.25)).describe()
    'contrast factor (0.75, 1.25) about the mean of each volume'
    >>> Contrast((0.75, 1.25), keep_range=True, statistics_over="patch").describe()
    'contrast factor (0.75, 1.25) about the mean of each patch, in its range'
    """

    factor: ParameterRange
    """A number >= 0, or (low, high)."""
    middle: float | None = None
    """Value that stays; None for the mean of the volume."""
    keep_range: bool = False
    """Whether to clamp to the smallest and largest value of the volume."""
    statistics_over: str = VOLUME
    """Source of mean and range: ``"volume"``, or ``"patch"``."""

    name: ClassVar[str] = "contrast"
    about_1: ClassVar[str] = "factor"
    amounts: ClassVar[Any] = {"factor": FROM_0}
    checks: ClassVar[Any] = {
        "keep_range": as_flag,
        "statistics_over": as_over,
        "middle": NUMBER_OR_NONE,
    }

    @property
    def looks_at_all(self) -> bool:
        return not self.pointwise

    @property
    def takes_statistics(self) -> bool:
        return self.statistics_over == VOLUME and (self.middle is None or self.keep_range)

    @property
    def pointwise(self) -> bool:  # type: ignore[override]
        return self.statistics_over == VOLUME or (self.middle is not None and not self.keep_range)

    def as_epilogue(self, params: Params, facts: Facts) -> Epilogue | None:
        if not self.pointwise:
            return None
        factor = params["factor"]
        middle = facts.statistics().mean if self.middle is None else self.middle
        shift = middle * (1 - factor)
        if not self.keep_range:
            return Epilogue(factor, shift)
        whole = facts.statistics()
        return Epilogue(factor, shift, whole.minimum, whole.maximum)

    def changes(self, params: Params, facts: Facts) -> tuple[Change, ...] | None:
        if self.pointwise:
            return super().changes(params, facts)
        factor = params["factor"]

        def spread(patch: ChannelStatistics) -> tuple[Epilogue]:
            middle = patch.mean if self.middle is None else self.middle
            ends = (patch.low, patch.high) if self.keep_range else ()
            return (Epilogue(factor, middle * (1 - factor), *ends),)

        return (ByStatistics(self.name, spread),)

    def describe(self) -> str:
        middle = (
            f"the mean of each {self.statistics_over}"
            if self.middle is None
            else f"{self.middle:g}"
        )
        suffix = ", in its range" if self.keep_range else ""
        return f"{self.in_words(factor=self.factor)} about {middle}{suffix}"


@dataclass(frozen=True)
class Clamp(AffineValueOp):
    """Values below ``low`` become ``low``, those above ``high`` become ``high``.

    It commutes with interpolation nearly: where values beyond the range are next to others, the
    edge between them moves by a fraction of a voxel.

    Examples
    --------
    >>> Clamp(-1000, 400).describe()
    'clamp to -1000 .. 400'
    """

    low: float | None = None
    """None for no end."""
    high: float | None = None
    """None for no end."""

    name: ClassVar[str] = "clamp"
    checks: ClassVar[Any] = {"low": NUMBER_OR_NONE, "high": NUMBER_OR_NONE}

    def __post_init__(self) -> None:
        super().__post_init__()
        low, high = self._ends
        if low > high or (low, high) == (-math.inf, math.inf):
            msg = f"clamp takes low <= high, at least one of them, got {self.low!r}, {self.high!r}"
            raise ValueError(msg)

    @property
    def _ends(self) -> tuple[float, float]:
        low = -math.inf if self.low is None else self.low
        return low, math.inf if self.high is None else self.high

    def as_epilogue(self, params: Params, facts: Facts) -> Epilogue:
        return Epilogue(1.0, 0.0, *self._ends)

    def describe(self) -> str:
        low, high = self._ends
        return f"{self.in_words()} to {low:g} .. {high:g}"


# batchgeneratorsv2's constant, for a patch that is constant afterwards.
_LEAST_STD = 1e-7
# One by less is no float32.
_LEAST_RANGE = 2.0**-126


@dataclass(frozen=True)
class Gamma(TwoSidedOp):
    """``low + (high - low) * ((value - low) / (high - low)) ** gamma``; the ends stay.

    Values beyond the ends are mirrored at the lower one, so that no root of a negative number is
    taken. Commutes with interpolation nearly, as far as the curve is straight from voxel to voxel.

    MONAI's ``AdjustContrast`` is ``statistics_over="patch"`` on a patch: the ends are those of each
    channel, as in nnU-Net. Overlapping patches then differ.

    Examples
    --------
    >>> Gamma((0.7, 1.5)).describe()
    'gamma (0.7, 1.5) in the range of each volume'
    >>> Gamma((0.7, 1.5), statistics_over="patch", keep_statistics=True, invert=True).describe()
    'gamma (0.7, 1.5) in the range of each patch, inverted, its mean and deviation kept'
    """

    gamma: ParameterRange
    """A number above 0, or (low, high); above 1 darkens."""
    in_range: tuple[float, float] | None = None
    """The ends (low, high); None for the smallest and largest value of the volume."""
    statistics_over: str = VOLUME
    """Source of the ends: ``"volume"``, or ``"patch"``."""
    keep_statistics: bool = False
    """Whether each channel of the patch gets its mean and deviation back; of a patch only."""
    invert: bool = False
    """Whether to mirror the values first, so that bright values are bent most."""

    name: ClassVar[str] = "gamma"
    about_1: ClassVar[str] = "gamma"
    amounts: ClassVar[Any] = {"gamma": ABOVE_0}
    checks: ClassVar[Any] = {
        "in_range": or_none(as_rising),
        "statistics_over": as_over,
        "keep_statistics": as_flag,
        "invert": as_flag,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.keep_statistics and self.statistics_over != PATCH:
            msg = "keep_statistics is of a patch, as the mean of the whole volume is not known "
            raise ValueError(f'{msg}after the bend: write statistics_over="patch" too')

    @property
    def pointwise(self) -> bool:  # type: ignore[override]
        return not self.keep_statistics and (
            self.statistics_over == VOLUME or self.in_range is not None
        )

    @property
    def looks_at_all(self) -> bool:
        return not self.pointwise

    @property
    def takes_statistics(self) -> bool:
        return self.in_range is None and self.statistics_over == VOLUME

    def changes(self, params: Params, facts: Facts) -> tuple[Change, ...]:
        ends = self.in_range
        if ends is None and self.statistics_over == VOLUME:
            whole = facts.statistics()
            ends = (whole.minimum, whole.maximum)
        if ends is not None and not self.keep_statistics:
            return (_Bend(params["gamma"], *ends, self.invert),)

        def bend(before: ChannelStatistics) -> tuple[Change, ...]:
            def restore(after: ChannelStatistics) -> tuple[Epilogue]:
                scale = before.std / max(after.std, _LEAST_STD)
                return (Epilogue(scale, before.mean - after.mean * scale),)

            low, high = ends or (before.low, before.high)
            last = (ByStatistics(self.name, restore),) if self.keep_statistics else ()
            return (_Bend(params["gamma"], low, high, self.invert), *last)

        return (ByStatistics(self.name, bend),)

    def describe(self) -> str:
        where = (
            f"the range of each {self.statistics_over}"
            if self.in_range is None
            else f"{self.in_range}"
        )
        where += ", inverted" if self.invert else ""
        where += ", its mean and deviation kept" if self.keep_statistics else ""
        return f"{self.in_words(gamma=self.gamma)} in {where}"


@dataclass(frozen=True)
class _Bend:
    """The formula of :class:`Gamma` between two ends.

    ``native/gamma.h`` takes the same steps in the same order, and so to the same bits.
    """

    gamma: float
    low: float
    high: float
    invert: bool

    name: ClassVar[str] = "gamma"

    @property
    def numbers(self) -> tuple[float, float, float]:
        """Start of distances, factor to a part of the range, and factor back."""
        size = self.high - self.low
        # Inverted, distances start at the upper end.
        start, sign = (self.high, -1) if self.invert else (self.low, 1)
        return start, sign / size if abs(size) >= _LEAST_RANGE else 0.0, sign * size

    def native_step(self) -> bytes:
        return native.pack_step(native.BEND, (self.gamma, *self.numbers))

    def in_numpy(self, channel: NDArray[np.float32], number: int) -> None:
        start, inward, outward = map(np.float32, self.numbers)
        # Plane by plane, so that temporaries stay in the cache.
        for plane in channel:
            part = (plane - start) * inward
            plane[...] = np.copysign(power(np.abs(part), self.gamma), part) * outward + start


_LOG2_E = 1.4426950408889634
_UPPER_BITS = np.uint32(0xFFFFF000)
_ROUNDS = np.float32(12582912)  # 1.5 * 2^23: adding it rounds half to even
_MOST_EXPONENT = 300
# Cephes Mathematical Library, exp2f (S. Moshier), the lowest power first.
_POWERS_OF_2 = (
    6.931472028550421e-1,
    2.402264791363012e-1,
    5.550332471162809e-2,
    9.618437357674640e-3,
    1.339887440266574e-3,
    1.535336188319500e-4,
)


def power(base: NDArray[np.float32], exponent: float) -> NDArray[np.float32]:
    """Return ``base ** exponent`` for ``base >= 0`` and ``exponent > 0``, float32.

    Accurate to 2.5 units of the last place for exponents up to 2, and 4 up to 5. A base below
    2^-126 counts as 0.

    Examples
    --------
    >>> power(np.array([0, 0.25, 1], np.float32), 0.5).tolist()
    [0.0, 0.5, 1.0]
    """
    # The exponent's part for whole powers of 2 has 12 bits: the product is exact.
    large = (np.array(exponent, np.float32).view(np.uint32) & _UPPER_BITS).view(np.float32)[()]
    y, e, x, z = log_of_mantissa(base)
    t = (x + (y + z * np.float32(-0.5))) * np.float32(exponent * _LOG2_E)
    whole = e * large
    n = np.clip(whole + t, np.float32(-_MOST_EXPONENT), np.float32(_MOST_EXPONENT))
    n = (n + _ROUNDS) - _ROUNDS
    f = (whole - n) + (e * np.float32(exponent - float(large)) + t)
    a, b, c, d, g, h = map(np.float32, _POWERS_OF_2)
    ff = f * f
    p = (f * a + np.float32(1)) + ((f * c + b) + ((f * g + d) + ff * h) * ff) * ff
    unit = (np.clip(n, -126, 127).astype(np.int32) + np.int32(127)) << np.int32(23)
    p *= unit.view(np.float32)
    p[(n < -126) | (base < np.finfo(np.float32).tiny)] = 0
    p[n > 127] = np.inf
    return np.where(base <= np.finfo(np.float32).max, p, base)


# A polynomial of a higher order has thousands of terms, and is not smooth.
MOST_ORDERS = 8


def orders_of(order: int) -> list[tuple[int, int, int]]:
    """Return the exponents of each term, in TorchIO's order: x^a y^b z^c, a + b + c <= order."""
    return [
        (a, b, c)
        for a in range(order + 1)
        for b in range(order + 1 - a)
        for c in range(order + 1 - a - b)
    ]


def polynomial(
    coefficients: Sequence[float], order: int, grid: Grid, source: Grid
) -> NDArray[np.float32]:
    """Return a polynomial on the voxels of a patch, (I, J, K).

    Its coordinates run from -1 at the first voxel centre of the whole volume to 1 at the last one,
    along each of its axes. A polynomial of them is one of the patch's indices too, of
    the same order; so a few values give it, axis by axis.
    """
    to_source = np.linalg.solve(source.affine, grid.affine)
    # As many nodes as a polynomial of one variable has coefficients (Chebyshev's).
    angles = np.pi * (np.arange(order + 1) + 0.5) / (order + 1)
    nodes = [(n - 1) / 2 + n / 2 * np.cos(angles) for n in grid.shape]
    places = np.stack(np.meshgrid(*nodes, indexing="ij"))
    index = np.einsum("ab,bijk->aijk", to_source[:3, :3], places)
    index += to_source[:3, 3].reshape(3, 1, 1, 1)
    size = np.array(source.shape, float).reshape(3, 1, 1, 1) - 1
    x, y, z = np.where(size > 0, 2 * index / np.maximum(size, 1) - 1, 0.0)
    terms = zip(coefficients, orders_of(order), strict=True)
    values = sum((t * x**a * y**b * z**c for t, (a, b, c) in terms), np.zeros_like(x))
    i, j, k = (_from_nodes(n, at) for n, at in zip(grid.shape, nodes, strict=True))
    rows = np.einsum("ia,jb,abc->ijc", i, j, values, optimize=True)
    flat: NDArray[np.float32] = rows.reshape(-1, order + 1).astype(np.float32)
    field: NDArray[np.float32] = (flat @ k.T.astype(np.float32)).reshape(grid.shape)
    return field


def _from_nodes(length: int, nodes: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the matrix from values at the nodes to values at all indices."""
    scale = max(length / 2, 1)
    at = ((nodes - (length - 1) / 2) / scale, (np.arange(length) - (length - 1) / 2) / scale)
    few, every = (np.polynomial.chebyshev.chebvander(x, len(nodes) - 1) for x in at)
    matrix: NDArray[np.float64] = np.linalg.solve(few.T, every.T).T
    return matrix


@dataclass(frozen=True)
class BiasField(RandomValueOp):
    """Multiply by ``exp`` of a polynomial of the place in the volume.

    The field belongs to the volume: overlapping patches agree, and only turns move it later.

    ``value * exp(sum of c_abc x ** a y ** b z ** c)`` over ``a + b + c <= order``, with x, y and z
    from -1 at the volume's first voxel to 1 at the last one, along its axes.

    References
    ----------
    Van Leemput et al., "Automated model-based bias field correction of MR images of the brain",
    IEEE Transactions on Medical Imaging 18 (1999): a polynomial, added to logarithms.

    Examples
    --------
    >>> BiasField(0.3).describe()
    'bias_field strength 0.3 of order 3'
    """

    strength: ParameterRange = 0.5
    """Coefficients are drawn from (-strength, strength), or from (low, high)."""
    order: int = 3
    """Order of the polynomial, 0 to 8."""

    name: ClassVar[str] = "bias_field"
    checks: ClassVar[Any] = {"strength": parse_range}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_integer(self.order) or not 0 <= self.order <= MOST_ORDERS:
            raise ValueError(f"order is an integer from 0 to {MOST_ORDERS}, got {self.order!r}")

    def draw(self, generator: np.random.Generator) -> Params | None:
        acts = generator.random() < self.p
        strength = self.strength
        ends = strength if isinstance(strength, tuple) else (-strength, strength)
        numbers = generator.random(len(orders_of(self.order))).tolist()
        coefficients = [value_at(ends, u) for u in numbers]
        return {"coefficients": coefficients} if acts else None

    def apply(self, array: NDArray[Any], params: Params, facts: Facts) -> NDArray[Any]:
        try:
            with np.errstate(over="raise"):
                field = polynomial(params["coefficients"], self.order, facts.grid, facts.source)
                np.exp(field, out=field)
                array *= field
        except FloatingPointError:
            most = max(map(abs, params["coefficients"]))
            msg = f"bias_field has coefficients of up to {most:g}, and exp of such is no number."
            do = "Replay the draws of a chain with the same ops, or give a strength of about 1."
            raise BadRecord(msg, do=do) from None
        return array

    def describe(self) -> str:
        return f"{self.in_words(strength=self.strength)} of order {self.order}"


OPS = (BiasField, Brightness, Clamp, Contrast, Gamma)
