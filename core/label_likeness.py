"""A test whether voxels look like classes: few whole numbers, and neighbours mostly equal.

The rules are narrow, because users ignore a warning that is often wrong.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

# Voxels sampled from a patch, evenly: milliseconds, and enough for a small organ.
_VALUES = 1 << 15
# Fewer values, or fewer outside the background, prove nothing.
_LEAST_VALUES, _LEAST_FOREGROUND = 1024, 32
# Classes of a few patches; images with whole numbers, such as CT, have many more values.
_MOST_CLASSES = 32
# Neighbours in an organ have one class; neighbours in noise of few values are seldom equal.
_EQUAL_PART = 0.75
# One or two patches may be a corner of an image in few grey levels; float files have many values.
_LEAST_PATCHES = 4
# Interpolated classes have fractions at their borders: 0.7 of the foreground of a rotated ball of
# 8 voxels.
_WHOLE_PART = 0.25


class ValueSample(NamedTuple):
    """Counts of a patch of stored voxels that decide whether they are classes."""

    whole: Mapping[float, int]  # count of each whole number
    others: int  # count of the other values
    integers: bool
    """Whether the stored type is an integer, so that whole numbers prove nothing."""
    equal: tuple[int, ...]
    """Along each axis, pairs of equal neighbours in the foreground."""
    pairs: tuple[int, ...]  # along each axis, pairs of neighbours in the foreground
    constant: bool  # whether each channel has one value, so that nothing in it has a border


def look_at(voxels: NDArray[Any], slope: float = 1.0, intercept: float = 0.0) -> ValueSample:
    """Count values of (C, I, J, K), sampled evenly, and equal neighbours along each axis.

    Examples
    --------
    >>> label = np.zeros((1, 4, 4, 4), np.uint8)
    >>> label[:, 2:] = 1
    >>> look_at(label)
    ValueSample(whole={0.0: 18, 1.0: 9}, others=0, integers=True, equal=(9, 9, 9), \
pairs=(9, 9, 9), constant=False)
    """
    step = math.ceil((voxels.size / _VALUES) ** (1 / 3)) or 1
    ends = [max(1, size - 1) for size in voxels.shape[1:]]
    here = _values(voxels, [slice(0, end, step) for end in ends], slope, intercept)
    finite = here[np.isfinite(here)]
    values, counts = np.unique(finite, return_counts=True)
    whole = values == np.rint(values)
    background = values[np.argmax(counts)] if values.size else 0.0
    foreground = (here != background) & np.isfinite(here)
    equal, pairs = [], []
    for axis, size in enumerate(voxels.shape[1:]):
        on = int(size > 1)
        firsts = [on * (a == axis) for a in range(len(ends))]
        inside = [slice(at, at + end, step) for at, end in zip(firsts, ends, strict=True)]
        there = _values(voxels, inside, slope, intercept)
        both = foreground & (there != background) & bool(on)
        pairs.append(int(np.count_nonzero(both)))
        equal.append(int(np.count_nonzero(both & (here == there))))
    return ValueSample(
        dict(zip(values[whole].tolist(), counts[whole].tolist(), strict=True)),
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


def look_like_image(samples: Iterable[ValueSample]) -> bool:
    """Whether patches have too many whole numbers for classes, or negative ones.

    Examples
    --------
    >>> ramp = np.arange(512).reshape(1, 8, 8, 8)
    >>> look_like_image([look_at(ramp % 7)]), look_like_image([look_at(ramp % 7), look_at(ramp)])
    (False, True)
    >>> look_like_image([look_at(-(ramp % 7))])
    True
    """
    values = {value for sample in samples for value in sample.whole}
    return len(values) > _MOST_CLASSES or min(values, default=0) < 0


def look_like_classes(samples: Sequence[ValueSample]) -> bool:
    """Whether patches look like classes: few whole numbers, and neighbours mostly equal.

    Interpolated classes count too, unless most of their values are fractions. Integers need
    several patches.

    Examples
    --------
    >>> label = np.zeros((1, 16, 16, 16), np.float32)
    >>> label[..., 12:] = 2
    >>> look_like_classes([look_at(label)]), look_like_classes([look_at(label / 3)])
    (True, False)
    >>> stored = look_at(label.astype(np.uint8))
    >>> look_like_classes([stored]), look_like_classes([stored] * 4)
    (False, True)
    >>> noise = np.random.default_rng(0).integers(0, 4, label.shape)
    >>> look_like_classes([look_at(noise.astype(np.float32))])
    False
    """
    if look_like_image(samples) or (samples[0].integers and len(samples) < _LEAST_PATCHES):
        return False
    if all(sample.constant for sample in samples):
        return False
    counts: Counter[float] = Counter()
    for sample in samples:
        counts.update(sample.whole)
    size = counts.total() + sum(sample.others for sample in samples)
    background = max(counts.values(), default=0)
    foreground = size - background
    if size < _LEAST_VALUES or foreground < _LEAST_FOREGROUND:
        return False
    if counts.total() - background < _WHOLE_PART * foreground:
        return False
    pairs = [sum(along) for along in zip(*(sample.pairs for sample in samples), strict=True)]
    equal = [sum(along) for along in zip(*(sample.equal for sample in samples), strict=True)]
    flat = all(e >= _EQUAL_PART * n for e, n in zip(equal, pairs, strict=True))
    return flat and sum(pairs) >= _LEAST_FOREGROUND
