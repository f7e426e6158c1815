"""Numbers that are allowed, but look as if they were meant in another unit.

Each rule is narrow, as a warning that is often wrong is read by nobody: what people write on
purpose is not told, though some mistakes then are not either.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# 3.14 and 3.1416 are pi too.
_ROUNDED_PI = 0.002
# MONAI's offsets are 0.1 to 0.3; an image of less than 0.4 of its size is mostly padding.
_MOSTLY_PADDING = 0.4
# Colours of an image, with or without how opaque it is.
_COLOURS = (3, 4)
# A plane of colours is larger along both axes; kernels, logits and boxes of a few are not.
_LEAST_PLANE = 16
# Of a patch so many voxels are looked at, evenly: milliseconds, and enough for a small organ.
_VALUES = 1 << 15
# Fewer values say nothing, nor fewer beside the background.
_LEAST_VALUES, _LEAST_BESIDE = 1024, 32
# As many classes of some patches; images with whole numbers, such as CT, have many more of them.
_MOST_CLASSES = 32
# Neighbours in an organ are of one class; those of noise of few values seldom equal.
_EQUAL_PART = 0.75
# A corner of an image in few grey levels is one patch, or two; files in float have many values.
_LEAST_PATCHES = 4
# Where classes were interpolated, what lies between two is no whole number: of a ball of 8 voxels
# that was turned, and kept so, 0.7 of what is not background.
_WHOLE_PART = 0.25


def numbers_of(amount: Any) -> tuple[float, ...]:
    """Return all numbers of an amount: a scalar, a range, or one of these per axis.

    Examples
    --------
    >>> numbers_of((0.0, 1.0, (-2.0, 2.0)))
    (0.0, 1.0, -2.0, 2.0)
    """
    if not isinstance(amount, tuple):
        return (amount,)
    return sum(map(numbers_of, amount), ())


def radians(name: str, degrees: Any) -> tuple[str, ...]:
    """Tell where the largest angle is above 0, at most pi / 2 and not whole; or is pi.

    Examples
    --------
    >>> radians("degrees", (-0.3, 0.3))[0].split(":")[0]
    'angle-in-radians'
    >>> radians("degrees", (-1.0, 1.0)), radians("degrees", (-2.5, 2.5)), radians("degrees", 0.0)
    ((), (), ())
    """
    most = max(map(abs, numbers_of(degrees)))
    small = 0 < most <= math.pi / 2 + _ROUNDED_PI and most != round(most)
    if not small and abs(most - math.pi) > _ROUNDED_PI:
        return ()
    return (
        f"angle-in-radians: {name} of at most {most:g} looks like radians, and angles are in "
        f"degrees; write {math.degrees(most):.4g}, or a whole number if it is meant.",
    )


def offsets(name: str, factors: Any) -> tuple[str, ...]:
    """Tell where every factor is below 0.4.

    Examples
    --------
    >>> offsets("zoom", (0.05, 0.1))[0].split(":")[0]
    'factor-far-below-1'
    >>> offsets("zoom", (0.2, 1.0)), offsets("zoom", 0.4)
    ((), ())
    """
    most = max(numbers_of(factors))
    if most >= _MOSTLY_PADDING:
        return ()
    return (
        f"factor-far-below-1: {name} of at most {most:g} shrinks the content to {most:g} of its "
        f"size on a grid of the same size; MONAI's scale_range={most:g} is {name}=({1 - most:g}, "
        f"{1 + most:g}), and its scale_params={most:g} is {name}={1 / most:g}.",
    )


def parts(name: str, percentiles: Iterable[float]) -> tuple[str, ...]:
    """Tell where the largest percentile is above 0 and at most 1.

    Examples
    --------
    >>> parts("upper", [0.005, 0.995])[0].split(":")[0]
    'percentile-as-part'
    >>> parts("upper", [0.5, 99.5])
    ()
    """
    most = max(percentiles)
    if not 0 < most <= 1:
        return ()
    return (
        f"percentile-as-part: {name} of {most:g} is {most:g} percent; percentiles are from 0 to "
        f"100, so write {100 * most:g} if that part is meant.",
    )


def colours(name: str, shape: Iterable[int]) -> tuple[str, ...]:
    """Tell where the first of three axes is 3 or 4 long, and both others more than 16.

    Examples
    --------
    >>> colours("image", (3, 256, 256))[0].split(":")[0]
    'colours-as-slices'
    >>> colours("image", (5, 256, 256)), colours("image", (3, 256, 256, 1))
    ((), ())
    """
    first, *others = shape
    if len(others) != 2 or first not in _COLOURS or min(others) <= _LEAST_PLANE:
        return ()
    sizes = ", ".join(map(str, (first, *others)))
    return (
        f"colours-as-slices: {name!r} of shape ({sizes}) is a volume of {first} slices; write "
        f"array[..., None], of shape ({sizes}, 1), for a plane of {first} channels, or give "
        "open_volume(affine=numpy.eye(4)) if slices are meant.",
    )


class Glimpse(NamedTuple):
    """What a patch of stored voxels says of whether these are classes."""

    whole: Mapping[float, int]
    """How often each whole number is there."""
    others: int
    """How many values are none."""
    integers: bool
    """Whether they are stored as integers, which hold whole numbers whatever they mean."""
    equal: tuple[int, ...]
    """Along each axis, pairs of neighbours beside the background that are equal."""
    pairs: tuple[int, ...]
    """How many pairs of neighbours are beside the background."""
    constant: bool
    """Whether each channel holds one value, so that nothing in it has a border."""


def glimpse(voxels: NDArray[Any], slope: float = 1.0, intercept: float = 0.0) -> Glimpse:
    """Look at some voxels of (C, I, J, K), evenly, and at their neighbours along each axis.

    Examples
    --------
    >>> label = np.zeros((1, 4, 4, 4), np.uint8)
    >>> label[:, 2:] = 1
    >>> glimpse(label)
    Glimpse(whole={0.0: 18, 1.0: 9}, others=0, integers=True, equal=(9, 9, 9), pairs=(9, 9, 9), \
constant=False)
    """
    step = math.ceil((voxels.size / _VALUES) ** (1 / 3)) or 1
    ends = [max(1, size - 1) for size in voxels.shape[1:]]
    here = _values(voxels, [slice(0, end, step) for end in ends], slope, intercept)
    finite = here[np.isfinite(here)]
    found, counts = np.unique(finite, return_counts=True)
    whole = found == np.rint(found)
    background = found[np.argmax(counts)] if found.size else 0.0
    beside = (here != background) & np.isfinite(here)
    equal, pairs = [], []
    for axis, size in enumerate(voxels.shape[1:]):
        on = int(size > 1)
        inside = [
            slice(on * (a == axis), end + on * (a == axis), step) for a, end in enumerate(ends)
        ]
        there = _values(voxels, inside, slope, intercept)
        both = beside & (there != background) & bool(on)
        pairs.append(int(np.count_nonzero(both)))
        equal.append(int(np.count_nonzero(both & (here == there))))
    return Glimpse(
        dict(zip(found[whole].tolist(), counts[whole].tolist(), strict=True)),
        int(counts[~whole].sum()),
        voxels.dtype.kind in "iub",
        tuple(equal),
        tuple(pairs),
        bool(here.size == 0 or (here == here[:, :1, :1, :1]).all()),
    )


def _values(
    voxels: NDArray[Any], inside: Iterable[slice], slope: float, intercept: float
) -> NDArray[np.float64]:
    return voxels[(slice(None), *inside)].astype(np.float64) * slope + intercept


def many_values(seen: Iterable[Glimpse]) -> bool:
    """Whether there are more whole numbers than classes, or some below 0: it is an image.

    Examples
    --------
    >>> ramp = np.arange(512).reshape(1, 8, 8, 8)
    >>> many_values([glimpse(ramp % 7)]), many_values([glimpse(ramp % 7), glimpse(ramp)])
    (False, True)
    >>> many_values([glimpse(-(ramp % 7))])
    True
    """
    values = {value for one in seen for value in one.whole}
    return len(values) > _MOST_CLASSES or min(values, default=0) < 0


def classes(seen: Sequence[Glimpse]) -> bool:
    """Whether patches look like those of classes: beside the background, few whole numbers.

    Neighbours are mostly equal, too. Classes that were kept interpolated are still known, unless
    most of their values lie between; integers only by several patches.

    Examples
    --------
    >>> label = np.zeros((1, 16, 16, 16), np.float32)
    >>> label[..., 12:] = 2
    >>> classes([glimpse(label)]), classes([glimpse(label / 3)])
    (True, False)
    >>> stored = glimpse(label.astype(np.uint8))
    >>> classes([stored]), classes([stored] * 4)
    (False, True)
    >>> noise = np.random.default_rng(0).integers(0, 4, label.shape)
    >>> classes([glimpse(noise.astype(np.float32))])
    False
    """
    if many_values(seen) or (seen[0].integers and len(seen) < _LEAST_PATCHES):
        return False
    if all(one.constant for one in seen):
        return False
    counts: Counter[float] = Counter()
    for one in seen:
        counts.update(one.whole)
    size = counts.total() + sum(one.others for one in seen)
    background = max(counts.values(), default=0)
    beside = size - background
    if size < _LEAST_VALUES or beside < _LEAST_BESIDE:
        return False
    if counts.total() - background < _WHOLE_PART * beside:
        return False
    pairs = [sum(along) for along in zip(*(one.pairs for one in seen), strict=True)]
    equal = [sum(along) for along in zip(*(one.equal for one in seen), strict=True)]
    flat = all(e >= _EQUAL_PART * n for e, n in zip(equal, pairs, strict=True))
    return flat and sum(pairs) >= _LEAST_BESIDE
