"""Numbers that are allowed, but look as if they were meant in another unit.

Each rule is narrow, as a warning that is often wrong is read by nobody: what people write on
purpose is not told, though some mistakes then are not either.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

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
# Of a batch so many values are looked at, evenly: a millisecond, and enough for a small organ.
_VALUES = 1 << 16
# Fewer values say nothing, nor fewer beside the background.
_LEAST_VALUES, _LEAST_BESIDE = 4096, 32
# As many classes of a patch; images with whole numbers, such as CT, have many more of them.
_MOST_CLASSES = 32
# Where classes were interpolated, what lies between two is no whole number: of a ball of 8 voxels
# that was turned, 0.7 of what is not background.
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


def classes(values: NDArray[Any]) -> bool:
    """Whether values look like those of classes: beside the background, few whole numbers.

    Classes that were interpolated are still known, unless most of their values lie between.

    Examples
    --------
    >>> label = np.zeros((1, 1, 16, 16, 16), np.float32)
    >>> label[..., 12:] = 2
    >>> classes(label), classes(label / 3), classes(np.arange(4096.0))
    (True, False, False)
    """
    flat = values.reshape(-1)
    flat = flat[:: max(1, flat.size // _VALUES) | 1]
    flat = flat[np.isfinite(flat)]
    if flat.size < _LEAST_VALUES:
        return False
    found, counts = np.unique(flat, return_counts=True)
    whole = found == np.rint(found)
    background = int(np.argmax(counts))
    beside = flat.size - int(counts[background])
    if beside < _LEAST_BESIDE or not whole[background] or np.count_nonzero(whole) > _MOST_CLASSES:
        return False
    return bool(counts[whole].sum() - counts[background] >= _WHOLE_PART * beside)
