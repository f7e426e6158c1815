"""Volumes as nnU-Net leaves them: normalised, in the chunks and blocks of blosc2."""

from __future__ import annotations

from typing import Any

import blosc2
import numpy as np
from numpy.typing import NDArray
from peers.partition import partition


def preprocessed(array: NDArray[Any], key: str) -> NDArray[Any]:
    """Return an image as normalised float32, or a label as int8."""
    if key != "image":
        return np.ascontiguousarray(array.astype(np.int8))
    image = array.astype(np.float32)
    image -= image.mean()
    image /= image.std()
    return np.ascontiguousarray(image)


def write(array: NDArray[Any], path: str, size: int) -> None:
    """Write one preprocessed volume, of which patches of ``size`` cubed will be read."""
    chunk, block = partition(array.shape, (size,) * 3, array.itemsize)
    # The filter that makes a chunk from the middle smaller.
    starts = [(n - c) // 2 for n, c in zip(array.shape, chunk, strict=True)]
    middle = tuple(slice(a, a + c) for a, c in zip(starts, chunk, strict=True))
    sizes = {}
    for name in (blosc2.Filter.NOFILTER, blosc2.Filter.SHUFFLE):
        tried = blosc2.asarray(
            np.ascontiguousarray(array[middle]), chunks=chunk, blocks=block, cparams=_cparams(name)
        )
        sizes[name] = tried.schunk.cbytes
    best = min(sizes, key=sizes.__getitem__)
    blosc2.asarray(
        array, urlpath=path, mode="w", chunks=chunk, blocks=block, cparams=_cparams(best)
    )


def _cparams(name: Any) -> dict[str, Any]:
    return {"codec": blosc2.Codec.LZ4HC, "clevel": 5, "filters": [name], "filters_meta": [0]}
