"""What HDF5's filters made of a chunk, undone within bounds.

HDF5's deflate filter doubles its memory until a chunk is decoded, whatever the chunk should hold:
a few kilobytes of a damaged or hostile file take gigabytes. So deflated chunks are decoded here,
into no more bytes than the chunk has. Other filters of HDF5 and h5py cannot grow so: szip, nbit
and scaleoffset know how many bytes they make, and lzf makes at most 88 of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import TruncatedVolume
from ...storage.decompress import inflated, most_between

# H5Zpublic.h.
_DEFLATE, _SHUFFLE, _FLETCHER32 = 1, 2, 3
_OURS = (_DEFLATE, _SHUFFLE, _FLETCHER32)
_SUM_BYTES = 4


class DeflatedChunks:
    """Decodes the chunks of one dataset whose filters include deflate.

    Parameters
    ----------
    dataset
        An open ``h5py.Dataset`` in chunks.
    size
        Bytes of its file.
    name
        What errors call the volume.
    """

    def __init__(self, dataset: Any, size: int, name: str) -> None:
        self._id, self._file_bytes, self._name = dataset.id, size, name
        self._dtype = np.dtype(dataset.dtype)
        self._chunks = tuple(dataset.chunks)
        stored = dataset.id.get_type()
        self._bytes = math.prod(self._chunks) * stored.get_size()
        listed = dataset.id.get_create_plist()
        self._filters = [listed.get_filter(n) for n in range(listed.get_nfilters())]
        codes = [code for code, *_ in self._filters]
        self.is_needed = _DEFLATE in codes
        """Whether a chunk may decode to more than it should."""
        # HDF5's own types have other bits than NumPy's.
        plain = stored.get_size() == self._dtype.itemsize and self._dtype.kind in "iuf"
        self.is_enough = plain and all(code in _OURS for code in codes)
        """Whether HDF5 has nothing left to do."""

    def bring(self, index: Sequence[int]) -> tuple[int, bytes] | None:
        """Return a mask of the filters that were left out, and stored bytes; None without any.

        Raises
        ------
        TruncatedVolume
            The chunk has more bytes than its file.
        """
        first = tuple(i * c for i, c in zip(index, self._chunks, strict=True))
        info = self._id.get_chunk_info_by_coord(first)
        if info.byte_offset is None:
            return None
        if info.size > min(self._file_bytes, most_between(self._bytes)):
            raise TruncatedVolume(
                f"a chunk of {self._name} has {info.size} bytes, the file {self._file_bytes}, and "
                f"the chunk {self._bytes} when decoded.",
                do="Copy or download the file again.",
            )
        mask, data = self._id.read_direct_chunk(first)
        return mask, data

    def decode(self, mask: int, data: bytes) -> NDArray[Any] | None:
        """Return the whole chunk; None where HDF5 has to, which was then made safe.

        Raises
        ------
        ValueError
            It decodes to more than it should, or to less, or its check sum is wrong.
        """
        most = most_between(self._bytes)
        for at in reversed(range(len(self._filters))):
            code, _, values, _ = self._filters[at]
            if mask >> at & 1:
                continue
            if code not in _OURS:
                return None
            left = self._bytes + _SUM_BYTES * at if code == _DEFLATE else most
            data = _UNDO[code](data, left, values)
        if not self.is_enough:
            return None
        if len(data) != self._bytes:
            msg = f"it decodes to {len(data)} of {self._bytes} bytes"
            raise ValueError(msg)
        return np.frombuffer(data, self._dtype).reshape(self._chunks)


def _inflate(data: Any, most: int, values: Sequence[int]) -> Any:
    return inflated(data, most)


def _unshuffle(data: Any, most: int, values: Sequence[int]) -> Any:
    width = values[0] if values else 1
    whole = len(data) // width * width
    planes = np.frombuffer(data, np.uint8, whole).reshape(width, -1)
    turned = np.empty((whole // width, width), np.uint8)
    # Plane by plane: transposing at once made a read of int16 1.4 times as long (measured).
    for at in range(width):
        turned[:, at] = planes[at]
    if whole == len(data):
        return turned.reshape(-1).data
    return turned.tobytes() + bytes(data[whole:])  # what is left over is not shuffled


def _check_sum(data: Any, most: int, values: Sequence[int]) -> Any:
    from numcodecs.fletcher32 import Fletcher32

    try:
        return Fletcher32().decode(data)
    except RuntimeError as error:
        raise ValueError(str(error)) from error


_UNDO: dict[int, Callable[[Any, int, Sequence[int]], Any]] = {
    _DEFLATE: _inflate,
    _SHUFFLE: _unshuffle,
    _FLETCHER32: _check_sum,
}
