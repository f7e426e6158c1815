"""Ops on a whole batch: labels at several scales, and a fill outside of a mask."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import CallSite, Sample
from ..core.errors import SampleError, add_location, missing_key_hint
from .collate import ItemByItem, RealizedArray, new_arrays

Scale = tuple[float, float, float]


def voxels_kept(size: int, length: int) -> NDArray[np.intp]:
    """Return the indices of ``size`` larger voxels' middles among ``length`` voxels.

    Examples
    --------
    >>> voxels_kept(2, 4).tolist(), voxels_kept(3, 8).tolist()
    ([1, 3], [1, 4, 6])
    """
    # float32, to match torch's "nearest-exact" for a middle between two voxels.
    step = np.float32(length) / np.float32(size)
    middles = np.floor((np.arange(size, dtype=np.float32) + np.float32(0.5)) * step).astype(np.intp)
    return np.asarray(np.minimum(middles, length - 1))


@dataclass(frozen=True)
class ScaleLabels(ItemByItem):
    """Put labels at several scales in the place of labels; a list each, the finest as given."""

    scales: tuple[Scale, ...]
    keys: tuple[str, ...]
    origin: CallSite

    def of(self, item: Any) -> dict[str, Any]:
        arrays = arrays_of(item, self.keys, "deep_supervision", self.origin)
        try:
            return {**item, **{key: self._at_scales(array) for key, array in arrays.items()}}
        except Exception as error:
            raise add_location(error, self.origin)  # noqa: B904  the very same error

    def _at_scales(self, array: NDArray[Any]) -> list[RealizedArray]:
        # At least one voxel; halves go to the even number.
        pairs = (zip(array.shape[-3:], scale, strict=True) for scale in self.scales)
        sizes = [tuple(max(round(n * s), 1) for n, s in pair) for pair in pairs]
        smaller = [size for size in sizes if size != array.shape[-3:]]
        memory = iter(new_arrays([((*array.shape[:-3], *size), array.dtype) for size in smaller]))
        results = []
        for size in sizes:
            if size == array.shape[-3:]:
                results.append(RealizedArray(array))
                continue
            part = array
            for axis, (count, length) in enumerate(zip(size, array.shape[-3:], strict=True)):
                part = part[(..., _index_of(count, length), *[slice(None)] * (2 - axis))]
            out = next(memory)
            out[...] = part
            results.append(RealizedArray(out))
        return results


@functools.lru_cache(maxsize=256)
def _index_of(size: int, length: int) -> Any:
    """Return the index of the kept voxels: a slice, and so a view, for even steps."""
    places = voxels_kept(size, length)
    steps = np.unique(np.diff(places)).tolist()
    return places if len(steps) > 1 else slice(int(places[0]), int(places[-1]) + 1, *steps)


@dataclass(frozen=True)
class FillOutside(ItemByItem):
    """Fill volumes in place where the mask has the label ``outside``."""

    keys: tuple[str, ...]
    mask: str
    outside: int
    fill: float
    channels: tuple[int, ...] | None
    keep_mask: bool
    origin: CallSite

    def of(self, item: Any) -> dict[str, Any]:
        arrays = arrays_of(item, (*self.keys, self.mask), "fill_outside", self.origin)
        outside = (arrays[self.mask] == self.outside).all(axis=1)
        for key in self.keys:
            array = arrays[key]
            if array[:, 0].shape != outside.shape:
                msg = f"fill_outside(): {key!r} is {array.shape}, {self.mask!r} is "
                msg += f"{arrays[self.mask].shape}"
                do = "Cut both on one grid: .resample_to() before the patches."
                raise SampleError(msg, do=do).at(self.origin)
            if array.dtype.kind in "iu" and not _holds(array.dtype, self.fill):
                msg = f"fill_outside(fill={self.fill:g}): {key!r} is {array.dtype}, which has no "
                raise SampleError(f"{msg}such number").at(self.origin)
            channels = range(array.shape[1]) if self.channels is None else self.channels
            for channel in channels:
                if channel >= array.shape[1]:
                    msg = f"fill_outside(): {key!r} has {array.shape[1]} channels, none is number "
                    raise SampleError(f"{msg}{channel}").at(self.origin)
                array[:, channel][outside] = self.fill
        return {k: v for k, v in item.items() if k != self.mask or self.keep_mask}


def _holds(dtype: np.dtype[Any], value: float) -> bool:
    limits = np.iinfo(dtype)
    return value == int(value) and limits.min <= value <= limits.max


def arrays_of(
    batch: Any, keys: Collection[str], who: str, origin: CallSite
) -> dict[str, NDArray[Any]]:
    """Return the arrays of a batch by key; SampleError for a missing one."""
    if isinstance(batch, Sample) or not isinstance(batch, Mapping):
        msg = f"{who}() changes batches, got {type(batch).__name__}"
        raise SampleError(msg, do=f"Put {who}() after batch_patches().").at(origin)
    for key in keys:
        if key not in batch:
            msg = f"{who}() is to change {key!r}, but the batch has {', '.join(batch)}"
            raise SampleError(msg, do=missing_key_hint(key, "Name one of these.")).at(origin)
        if not isinstance(batch[key], RealizedArray) or len(batch[key].shape) != 5:
            msg = f"{who}() changes arrays (B, C, I, J, K), and {key!r} is none"
            raise SampleError(msg, do=f"Put {who}() after batch_patches(), once.").at(origin)
    return {key: batch[key].array for key in keys}
