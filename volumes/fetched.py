"""Bring stored bytes in without making voxels of them: what storage alone can do.

A read fetches and decodes in one go. To say which of the two takes the time, the first is
done by itself: the pages of a mapped file are touched, the stored chunks of a zarr array are
taken from its store and dropped.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from numpy.typing import NDArray

# The smallest page of memory there is; where pages are larger, some are touched twice.
_PAGE_BYTES = 4096


def touch(array: NDArray[Any]) -> int:
    """Look at one element of every page on which ``array`` lies; return its bytes.

    Examples
    --------
    >>> import numpy as np
    >>> touch(np.zeros((1, 64, 64, 64), np.int16))
    524288
    """
    if array.size:
        fastest = min(range(array.ndim), key=lambda axis: abs(array.strides[axis]) or _PAGE_BYTES)
        step = max(1, _PAGE_BYTES // max(1, abs(array.strides[fastest])))
        index = [slice(None)] * array.ndim
        index[fastest] = slice(None, None, step)
        array[tuple(index)].copy()
        # A row may begin in the middle of a page and so end on one more.
        index[fastest] = slice(-1, None)
        array[tuple(index)].copy()
    return array.nbytes


def fetch_chunks(array: Any, indices: Iterable[tuple[int, ...]]) -> int | None:
    """Return the bytes of the stored chunks of a zarr array, having fetched and dropped them.

    Returns
    -------
    None where this cannot be told apart from decoding: arrays in shards, of which a read takes
    only parts.
    """
    if array.shards is not None:
        return None
    import asyncio

    import zarr
    from zarr.core.sync import sync

    async def every() -> int:
        # As many at a time as zarr-python itself asks for.
        gate = asyncio.Semaphore(int(zarr.config.get("async.concurrency")))

        async def one(index: tuple[int, ...]) -> int:
            async with gate:
                place = array.store_path / array.metadata.encode_chunk_key(index)
                stored = getattr(place.store, "get_stored", None)  # ours may decode them, too
                found = await (place.get() if stored is None else stored(place.path))
            return 0 if found is None else len(found)

        return sum(await asyncio.gather(*(one(index) for index in indices)))

    return sync(every())
