"""``.nii`` behind a URL: the header and the regions as byte ranges, never the whole file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import TALLY, Region
from ..core.errors import TruncatedVolume
from .backend import Backend, Channels
from .coalesce import Span, coalesce
from .nifti_header import NIFTI2_BYTES, NiftiHeader, check_length, parse_nifti
from .remote_file import RemoteFile
from .voxels import Voxels, plain

# What an object store sends during one round trip: a request costs as much as these bytes.
GAP_BYTES = 1024**2
# Bounds the memory of one request; several are under way at once.
MOST_BYTES = 16 * 1024**2


class RemoteNifti(Backend):
    """A ``.nii`` that fsspec reaches. A region is a few range requests."""

    remote = True

    def __init__(self, url: str, options: Mapping[str, Any], name: str) -> None:
        self._file = RemoteFile(url, options, name)
        self._fields = parse_nifti(self._file.head(NIFTI2_BYTES), name)
        TALLY.count(headers=1)
        check_length(self._fields, self._file.size, name)
        super().__init__(self._fields.header("range"), name)

    @property
    def content_key(self) -> str:
        """A name for this file in this version, where the store tells versions apart."""
        return self._file.content_key

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Fetch the runs of the region, neighbours in one request."""
        first, last = channels or (0, self.shape[0])
        rows = row_spans(self._fields, region, (first, last))
        spans = coalesce(rows, GAP_BYTES, MOST_BYTES)
        pieces = self._file.ranges(spans)
        flat = _rows_of(rows, spans, pieces, self.name)
        i, j, k = region.shape
        array = flat.view(self._fields.dtype).reshape((i, j, k, last - first), order="F")
        view = plain(array.transpose(3, 0, 1, 2))
        return Voxels(view, self.header.slope, self.header.intercept)

    def fetch(self, region: Region, channels: Channels | None = None) -> int:
        """Fetch the region: its bytes are its voxels, so there is nothing to decode."""
        return self.read(region, channels).array.nbytes


def row_spans(fields: NiftiHeader, region: Region, channels: Channels) -> list[Span]:
    """Return the runs of bytes that hold a region, in the order of the file.

    A run goes along the first axis; where that is whole, along the second too.
    """
    i, j, k = fields.shape[:3]
    (i0, i1), (j0, j1), (k0, k1) = region
    c = np.arange(*channels, dtype=np.int64)[:, None, None]
    z = np.arange(k0, k1, dtype=np.int64)[None, :, None]
    if (i0, i1) == (0, i):
        y, voxels = np.array([j0], np.int64), i * (j1 - j0)
    else:
        y, voxels = np.arange(j0, j1, dtype=np.int64), i1 - i0
    first = ((c * k + z) * j + y) * i + i0
    size = fields.dtype.itemsize
    starts = (fields.offset + first * size).ravel().tolist()
    return [(start, start + voxels * size) for start in starts]


def _rows_of(
    rows: list[Span], spans: list[Span], pieces: list[bytes], name: str
) -> NDArray[np.uint8]:
    """Return the bytes of all rows, one after another, taken from the spans that hold them."""
    flat = np.empty(sum(stop - start for start, stop in rows), np.uint8)
    at, row = 0, 0
    for (first, last), piece in zip(spans, pieces, strict=True):
        if len(piece) != last - first:
            raise TruncatedVolume(
                f"{name} sent {len(piece)} of the {last - first} bytes from {first} on.",
                do="Read again, or check the store.",
            )
        source = np.frombuffer(piece, np.uint8)
        while row < len(rows) and rows[row][1] <= last:
            start, stop = rows[row]
            flat[at : at + stop - start] = source[start - first : stop - first]
            at, row = at + stop - start, row + 1
    return flat
