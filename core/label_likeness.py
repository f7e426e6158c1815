"""A test whether voxels look like classes: few whole numbers, and neighbours mostly equal.

The rules are narrow, as a warning that is often wrong is read by nobody.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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


class ValueSample(NamedTuple):
    """What a patch of stored voxels says of whether these are classes."""

    whole: Mapping[float, int]  # how often each whole number is there
    others: int  # how many values are none
    integers: bool
    """Whether they are stored as integers, which hold whole numbers whatever they mean."""
    equal: tuple[int, ...]
    """Along each axis, pairs of neighbours beside the background that are equal."""
    pairs: tuple[int, ...]  # how many pairs of neighbours are beside the background
    constant: bool  # whether each channel holds one value, so that nothing in it has a border


def look_at(voxels: NDArray[Any], slope: float = 1.0, intercept: float = 0.0) -> ValueSample:
    """Look at some voxels of (C, I, J, K), evenly, and at their neighbours along each axis.

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
    """Whether there are more whole numbers than classes, or some below 0: it is an image.

    Examples
    --------
    >>> ramp = np.arange(512).reshape(1, 8, 8, 8)
    >>> look_like_image([look_at(ramp % 7)]), look_like_image([look_at(ramp % 7), look_at(ramp)])
    (False, True)
    >>> look_like_image([look_at(-(ramp % 7))])
    True
    """
    values = {value for one in samples for value in one.whole}
    return len(values) > _MOST_CLASSES or min(values, default=0) < 0


def look_like_classes(samples: Sequence[ValueSample]) -> bool:
    """Whether patches look like those of classes: beside the background, few whole numbers.

    Neighbours are mostly equal, too. Classes that were kept interpolated are still known, unless
    most of their values lie between; integers only by several patches.

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
    if all(one.constant for one in samples):
        return False
    counts: Counter[float] = Counter()
    for one in samples:
        counts.update(one.whole)
    size = counts.total() + sum(one.others for one in samples)
    background = max(counts.values(), default=0)
    beside = size - background
    if size < _LEAST_VALUES or beside < _LEAST_BESIDE:
        return False
    if counts.total() - background < _WHOLE_PART * beside:
        return False
    pairs = [sum(along) for along in zip(*(one.pairs for one in samples), strict=True)]
    equal = [sum(along) for along in zip(*(one.equal for one in samples), strict=True)]
    flat = all(e >= _EQUAL_PART * n for e, n in zip(equal, pairs, strict=True))
    return flat and sum(pairs) >= _LEAST_BESIDE
