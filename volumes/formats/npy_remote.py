"""Arrays as they are in a file behind a URL, ``.npy`` above all: a region is a few byte ranges."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...core import IO_COUNTERS, OrientedBox, Region
from ...core.errors import TruncatedVolume
from ...storage.file_reader import rows_of_box
from ...storage.ranges import REMOTE_RUN, Joining, Span, coalesce, joining
from ...storage.read_ahead import Ticket
from ...storage.remote import RemoteFile
from ..backend import Channels
from ..header import IDENTITY, Header, channels_first
from ..scheme import REMOTE_ROWS_GAP
from ..voxels import Voxels, plain
from .chunked_backend import OneRemoteFile
from .npy import read_npy_header
from .raw import rows_of

# Format 1.0 pads its header to 64 bytes and rarely needs two of these; 2.0 may be longer.
_HEAD_BYTES = 4096


class RemoteArray(OneRemoteFile):
    """An array that lies in a remote file as it is. A region is a few range requests.

    Parameters
    ----------
    file
        Where it lies.
    shape, dtype, offset, fortran
        Two to four axes, type as stored, where it begins, and whether the first axis is fastest.
    affine
        Of the volume.
    """

    def __init__(
        self,
        file: RemoteFile,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        offset: int,
        *,
        fortran: bool = False,
        affine: tuple[float, ...] = IDENTITY,
    ) -> None:
        self._file, self._dtype, self._offset, self._fortran = file, dtype, offset, fortran
        expected = offset + math.prod(shape) * dtype.itemsize
        if file.size < expected:
            raise TruncatedVolume(
                f"{file.name} holds {file.size} bytes, and its header speaks of {expected}.",
                do="Upload the file again.",
            )
        # The axes that are stored, of (C, I, J, K): two are I and J, three have no C.
        self._stored = {2: (1, 2), 3: (1, 2, 3), 4: (0, 1, 2, 3)}.get(len(shape), ())
        whole = channels_first(np.broadcast_to(np.empty((), dtype), shape), file.name)
        super().__init__(Header(whole.shape, affine, dtype, access="range"), file.name)

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Fetch the rows of the region, neighbours in one request."""
        box = (channels or (0, self.shape[0]), *region)
        axes, rows, spans = self._runs(box)
        flat = rows_of(rows, spans, self._file.ranges(spans), self.name).view(self._dtype)
        array = flat.reshape([box[axis][1] - box[axis][0] for axis in axes])
        return Voxels(plain(channels_first(array.T if self._fortran else array, self.name)))

    def prefetch(self, region: Region, box: OrientedBox | None = None) -> Ticket | None:
        """Begin to fetch the rows of the region."""
        _, _, spans = self._runs(((0, self.shape[0]), *region))
        return self._file.prefetch(spans)

    def _runs(
        self, box: Sequence[tuple[int, int]]
    ) -> tuple[tuple[int, ...], list[Span], list[Span]]:
        """Return the stored axes, slowest first, the rows of a box, and what holds them."""
        axes = self._stored[::-1] if self._fortran else self._stored
        lengths = [self.shape[axis] for axis in axes]
        taken = [box[axis] for axis in axes]
        rows = rows_of_box(lengths, taken, self._dtype.itemsize, self._offset)
        return axes, rows, coalesce(rows, *joining(Joining(REMOTE_ROWS_GAP, REMOTE_RUN)))

    def fetch(self, region: Region, channels: Channels | None = None) -> int:
        """Fetch the region: its bytes are its voxels, so there is nothing to decode."""
        return self.read(region, channels).array.nbytes


class RemoteNpy(RemoteArray):
    """A ``.npy`` that fsspec reaches, in C or Fortran order."""

    def __init__(self, url: str, options: Mapping[str, Any], name: str) -> None:
        file = RemoteFile(url, options, name)
        head = io.BytesIO(file.head(_HEAD_BYTES))
        shape, fortran, dtype = read_npy_header(head, name)
        IO_COUNTERS.count(headers=1)
        super().__init__(file, shape, dtype, head.tell(), fortran=fortran)
