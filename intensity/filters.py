"""Filters: Gaussians, and coarser voxels."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core import Grid
from ..core.grid import warn_beyond
from ..core.validate import (
    LATER,
    MILLIMETRES,
    ParameterRange,
    as_axes,
    as_flag,
    as_unit,
    bounds_of,
    entries_of,
    is_number,
    value_at,
)
from . import native_values as native
from .native_values import Change, change_values
from .value_op import FROM_0, Facts, Halo, Params, RandomValueOp, number_text

# A symmetric filter along one axis, in place; the outermost voxels repeat beyond its ends.
#
# NumPy is the reference; ``native/filter.h`` adds in the same order, and gives the same bits.

# Where SciPy's gaussian_filter ends the kernel, in standard deviations.
TRUNCATE = 4.0


def reach(sigma: float) -> int:
    """Return the radius in voxels of a Gaussian of ``sigma`` voxels."""
    return int(TRUNCATE * sigma + 0.5)


def gaussian(sigma: float) -> NDArray[np.float32]:
    """Return the weights of a voxel and its neighbours on one side; all sum to 1."""
    radius = reach(sigma)
    weights = [1.0]
    weights += [math.exp(-0.5 * (t / sigma) ** 2) for t in range(1, radius + 1)]
    return (np.array(weights) / (2 * sum(weights) - 1)).astype(np.float32)


_ITSELF = np.ones(1, np.float32)


@dataclass(frozen=True, eq=False)
class AxisFilters:
    """A symmetric filter along each axis, one after another."""

    weights: tuple[NDArray[np.float32], ...]
    """Weights for each axis: of the voxel, then of neighbours on one side; may be empty."""

    name: ClassVar[str] = "blur"

    def native_step(self) -> bytes:
        return native.pack_step(native.FILTER, weights=self.weights)

    def in_numpy(self, channel: NDArray[Any], number: int) -> None:
        for axis, weights in enumerate(self.weights):
            radius, length = weights.size - 1, channel.shape[axis]
            if not radius:
                continue
            ends = [(0, 0)] * 3
            ends[axis] = (radius, radius)
            planes = np.moveaxis(np.pad(channel, ends, mode="edge"), axis, 0)
            total = weights[0] * planes[radius : radius + length]
            for t in range(1, radius + 1):
                neighbours = planes[radius - t : radius - t + length]
                total += weights[t] * (neighbours + planes[radius + t : radius + t + length])
            np.moveaxis(channel, axis, 0)[...] = total


def filter_axis(array: NDArray[Any], axis: int, weights: NDArray[np.float32]) -> None:
    """Filter ``array``, (C, I, J, K), along spatial axis 0, 1 or 2, in place."""
    change_values(array, [AxisFilters(tuple(weights if a == axis else _ITSELF for a in range(3)))])


@dataclass(frozen=True)
class _Gaussian(RandomValueOp):
    """Shared behaviour of blur and sharpen: the filter, its radius, its unit."""

    sigma: ParameterRange
    """Standard deviation along every axis: a number >= 0, or (low, high)."""
    unit: str = "mm"
    """``"mm"``, ``"um"`` or another length, or ``"voxel"`` of the grid as it is here."""

    commutes: ClassVar[bool] = False
    by_channel: ClassVar[bool] = True
    keeps_faces: ClassVar[bool] = True
    amounts: ClassVar[Any] = {"sigma": FROM_0}
    checks: ClassVar[Any] = {"unit": as_unit}

    def sigmas(self, params: Params, grid: Grid) -> tuple[float, float, float]:
        """Return the deviation along each axis, in voxels."""
        i, j, k = entries_of(params["sigma"]) or (params["sigma"],) * 3
        a, b, c = (1.0, 1.0, 1.0) if self.unit == "voxel" else grid.spacing
        size = MILLIMETRES.get(self.unit, 1.0)
        return (i * size / a, j * size / b, k * size / c)

    def halo(self, params: Params, grid: Grid) -> Halo:
        i, j, k = map(reach, self.sigmas(params, grid))
        return (i, j, k)

    def filters(self, params: Params, facts: Facts) -> AxisFilters:
        """Return the filters along the axes; one of a single voxel is left alone."""
        if self.unit != "voxel":
            most = max(entries_of(params["sigma"]) or (params["sigma"],)) * MILLIMETRES[self.unit]
            if most > facts.source.longest:
                warn_beyond(self.name, self.unit, most, facts.source)
        sigmas = zip(self.sigmas(params, facts.grid), facts.grid.shape, strict=True)
        weights = (gaussian(sigma) if reach(sigma) and n > 1 else _ITSELF for sigma, n in sigmas)
        return AxisFilters(tuple(weights))

    def describe(self) -> str:
        return f"{self.in_words(sigma=self.sigma)} {self.unit}"


@dataclass(frozen=True)
class Blur(_Gaussian):
    """A Gaussian filter on the chain's result so far, which later spatial ops interpolate.

    Beyond the volume, the padding of the volume's sampling goes in.

    Examples
    --------
    >>> Blur((0.5, 1.5), p=0.2).describe()
    'blur sigma (0.5, 1.5) (p=0.2) mm'
    >>> Blur((0.5, 1), "voxel", per_axis=True).describe()
    'blur sigma (0.5, 1.0) voxel, of each axis'
    """

    per_axis: bool = field(default=False, kw_only=True, metadata=LATER)
    """Whether a range is drawn for each axis on its own."""

    name: ClassVar[str] = "blur"
    checks: ClassVar[Any] = {"per_axis": as_flag}

    def draw(self, generator: np.random.Generator) -> Params | None:
        if not self.per_axis:
            return super().draw(generator)
        acts = generator.random() < self.p
        sigmas = [value_at(self.sigma, u) for u in generator.random(3).tolist()]
        return {"sigma": sigmas} if acts else None

    def describe(self) -> str:
        return super().describe() + (", of each axis" if self.per_axis else "")

    def changes(self, params: Params, facts: Facts) -> tuple[Change, ...]:
        return (self.filters(params, facts),)


@dataclass(frozen=True)
class Sharpen(_Gaussian):
    """``value + amount * (value - blurred)``, an unsharp mask.

    Examples
    --------
    >>> Sharpen(1.0, amount=(0.5, 2)).describe()
    'sharpen sigma 1 mm amount (0.5, 2.0)'
    """

    amount: ParameterRange = 1.0
    """Amount of the blurred-away detail to add: a number >= 0, or (low, high)."""

    name: ClassVar[str] = "sharpen"
    amounts: ClassVar[Any] = {"sigma": FROM_0, "amount": FROM_0}

    def apply(self, array: NDArray[Any], params: Params, facts: Facts) -> NDArray[Any]:
        soft = array.copy()
        change_values(soft, [self.filters(params, facts)])
        np.subtract(array, soft, out=soft)
        soft *= np.float32(params["amount"])
        array += soft
        return array

    def describe(self) -> str:
        return f"{super().describe()} amount {number_text(self.amount)}"


# NumPy here is the reference; ``native/coarsen.h`` takes the same steps, and gives the same bits.


@dataclass(frozen=True)
class CoarserVoxels:
    """Keep every few voxels along each axis, and interpolate linearly: K first, I last.

    The array has a halo of ``ceil(factor) + 1`` voxels. The lattice determines the kept voxels:
    number ``m`` is the voxel nearest to ``m * factor``.
    """

    factors: tuple[float, float, float]
    """Factor along each axis; 1 leaves an axis alone."""
    corner: tuple[int, int, int]
    """Index of the first voxel on the lattice."""

    name: ClassVar[str] = "low_resolution"

    def native_step(self) -> bytes:
        return native.pack_step(native.COARSEN, self.factors, corner=self.corner)

    def in_numpy(self, channel: NDArray[np.float32], number: int) -> None:
        for axis in (2, 1, 0):
            if self.factors[axis] > 1 and channel.shape[axis] > 1:
                _coarsen_axis(channel, axis, self.factors[axis], self.corner[axis])


def _coarsen_axis(channel: NDArray[np.float32], axis: int, factor: float, corner: int) -> None:
    length = channel.shape[axis]
    place = (corner + np.arange(length)) / factor
    before = np.floor(place)
    low, high = (
        np.clip(np.rint(m * factor) - corner, 0, length - 1).astype(np.int32)
        for m in (before, before + 1)
    )
    part = (place - before).astype(np.float32).reshape(-1, *[1] * (2 - axis))
    first, last = (np.take(channel, places, axis=axis) for places in (low, high))
    np.add(first, (last - first) * part, out=channel)
    # Kept voxels stay exact, also next to an infinite one.
    np.copyto(channel, first, where=part == 0)


INVERSE = "; factor says how much larger voxels get: write factor=2 for a scale of 0.5"
"""Advice for a scale below 1, as in other libraries."""
_TWO_GRIDS = "a coarser grid is made of the voxels so far, and what follows is sampled from that"


class _Coarser(RandomValueOp):
    """Shared behaviour of ops that make voxels larger along axes by a factor."""

    commutes: ClassVar[bool] = False
    late_because: ClassVar[str] = _TWO_GRIDS
    amounts: ClassVar[Any] = {"factor": {"least": 1.0}}
    factor: ParameterRange
    axes: int | tuple[int, ...]

    def __post_init__(self) -> None:
        numbers = entries_of(self.factor) or (self.factor,)
        if all(map(is_number, numbers)) and 0 < min(numbers) < 1:  # elsewhere it is a scale
            raise ValueError(f"factor takes numbers >= 1, got {self.factor!r}{INVERSE}")
        super().__post_init__()

    def factors(self, params: Params) -> tuple[float, float, float]:
        """Return by how much each axis gets coarser."""
        axes = (params["axis"],) if "axis" in params else entries_of(self.axes)
        i, j, k = (params["factor"] if axis in axes else 1.0 for axis in range(3))
        return (i, j, k)

    def halo(self, params: Params, grid: Grid) -> Halo:
        i, j, k = (math.ceil(f) + 1 if f > 1 else 0 for f in self.factors(params))
        return (i, j, k)

    def changes(self, params: Params, facts: Facts) -> tuple[Change, ...]:
        return (CoarserVoxels(self.factors(params), facts.corner),)


@dataclass(frozen=True)
class LowResolution(_Coarser):
    """Keep every ``factor``-th voxel along all axes, and interpolate linearly in between.

    Along each axis in turn, with ``m = floor(x / factor)`` and ``t = x / factor - m``, a voxel
    becomes ``(1 - t) v(k_m) + t v(k_m+1)``, where ``k_m = round(m factor)`` is a voxel that stays.

    References
    ----------
    Isensee et al., "nnU-Net: a self-configuring method for deep learning-based biomedical image
    segmentation", Nature Methods 18 (2021): one of its augmentations, nearest down, and up again.

    Examples
    --------
    >>> LowResolution((1, 2), p=0.25).describe()
    'low_resolution factor (1.0, 2.0) (p=0.25)'
    >>> LowResolution((1, 2), by_inverse=True, axes=(1, 2)).describe()
    'low_resolution factor (1.0, 2.0) drawn as 1/factor, along axis 1 and 2'
    """

    factor: ParameterRange
    """How much larger the voxels are, at least 1: a number, or (low, high)."""
    axes: int | tuple[int, ...] = field(default=(0, 1, 2), kw_only=True, metadata=LATER)
    """Axes along which voxels get larger."""
    by_inverse: bool = field(default=False, kw_only=True, metadata=LATER)
    """Whether 1 / factor is drawn evenly, the scale of nnU-Net and MONAI, and not the factor."""

    name: ClassVar[str] = "low_resolution"
    checks: ClassVar[Any] = {"axes": as_axes, "by_inverse": as_flag}

    def amount_at(self, name: str, u: float) -> float:
        if not self.by_inverse:
            return super().amount_at(name, u)
        low, high = bounds_of(self.factor)
        return 1 / value_at((1 / high, 1 / low), u)

    def describe(self) -> str:
        inverse = " drawn as 1/factor" if self.by_inverse else ""
        axes = " and ".join(map(str, entries_of(self.axes)))
        along = "" if self.axes == (0, 1, 2) else f", along axis {axes}"
        return f"{self.in_words(factor=self.factor)}{inverse}{along}"


@dataclass(frozen=True)
class Anisotropy(_Coarser):
    """Keep every ``factor``-th voxel along one axis, and interpolate linearly in between.

    The formula is that of ``LowResolution``, along the axis that was drawn.

    References
    ----------
    Billot et al., "Partial volume segmentation of brain MRI scans of any resolution and contrast",
    MICCAI 2020: thick slices, brought back to the spacing before.

    Examples
    --------
    >>> Anisotropy((1.5, 5), axes=2).describe()
    'anisotropy factor (1.5, 5.0) along axis 2'
    """

    factor: ParameterRange
    """How much longer the voxels are, at least 1: a number, or (low, high)."""
    axes: int | tuple[int, ...] = (0, 1, 2)
    """One of these is drawn, among those with more than one voxel: of 2-D data never K."""

    name: ClassVar[str] = "anisotropy"
    checks: ClassVar[Any] = {"axes": as_axes}

    @property
    def draws_axis(self) -> bool:
        return len(entries_of(self.axes)) > 1

    def along(self, axes: tuple[int, ...]) -> Anisotropy:
        subset = tuple(axis for axis in entries_of(self.axes) if axis in axes)
        return replace(self, axes=subset) if subset else self

    def draw(self, generator: np.random.Generator) -> Params | None:
        params = super().draw(generator)
        axes = entries_of(self.axes)
        axis = axes[int(generator.random() * len(axes))]
        return None if params is None else {**params, "axis": axis}

    def describe(self) -> str:
        axes = " or ".join(map(str, entries_of(self.axes)))
        return f"{self.in_words(factor=self.factor)} along axis {axes}"


OPS = (Anisotropy, Blur, LowResolution, Sharpen)
