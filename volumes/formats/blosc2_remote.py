"""``.b2nd`` behind a URL: the header by itself, then the file once into the cache on this machine.

blosc2 reads files and memory only. nnU-Net's cases are some ten megabytes, of which an epoch reads
most. A copy that cannot be decoded is made again: the format has no check sums, so what was damaged
on its way is found when its blocks are needed, maybe by a later run.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Mapping
from typing import Any, BinaryIO

from ...core import TALLY, Region
from ...core.errors import BadHeader, CacheTooSmall, TruncatedVolume, VolumeNotFound
from ...storage.decoded_cache import DecodedCache
from ...storage.decompress import copy
from ...storage.disk_cache import cache_budget, cache_directory
from ...storage.location import remote_errors
from ...storage.remote import RemoteFile
from ...storage.retry import DAMAGED, read_anew
from ..backend import Channels, no_options
from ..header import IDENTITY, Header
from ..voxels import Voxels, refuse_unreadable
from .blosc2_array import Blosc2Backend
from .blosc2_frame import HEAD_BYTES, FrameHeader, frame_sizes, read_frame_header
from .one_remote_file import OneRemoteFile
from .zarr_layout import plain_layout

# Between making the copy and mapping it, another process may need its room; each time at least
# one of the two goes on.
_ATTEMPTS = 3


class RemoteBlosc2(OneRemoteFile):
    """A ``.b2nd`` that is copied when its voxels are first asked for."""

    def __init__(
        self, url: str, storage_options: Mapping[str, Any], name: str, options: Mapping[str, Any]
    ) -> None:
        no_options(options, name)
        self._lock = threading.Lock()
        self._copy: Blosc2Backend | None = None
        with remote_errors(name, storage_options, url=url):
            self._file = RemoteFile(url, storage_options, name)
            frame = _frame(self._file)
        refuse_unreadable(frame.dtype, name)
        layout = plain_layout(frame.shape, name)
        TALLY.count(headers=1)
        chunks = layout.spatial_part(frame.blocks)
        super().__init__(Header(layout.shape, IDENTITY, frame.dtype, chunks, "stream"), name)

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Read the blocks that the region touches, of the copy that the first call makes."""

        def read() -> Voxels:
            copied = self._local()
            try:
                return copied.read(region, channels)
            except DAMAGED:
                self._forget(copied)
                raise

        return read_anew(read)

    def _local(self) -> Blosc2Backend:
        """Return the copy, which the first call makes."""
        with self._lock:
            if self._copy is None:
                with self._file.errors():
                    try:
                        self._copy = self._copied()
                    except DAMAGED:
                        self._cache().drop(self._file.cache_key)
                        raise
            return self._copy

    def _forget(self, copied: Blosc2Backend) -> None:
        """Let the copy go, for all processes, unless another thread has made it anew."""
        with self._lock:
            if self._copy is copied:
                self._copy = None
                self._cache().drop(self._file.cache_key)

    def _cache(self) -> DecodedCache:
        return DecodedCache(cache_directory(), cache_budget())

    def _copied(self) -> Blosc2Backend:
        cache = self._cache()
        for attempt in range(_ATTEMPTS):
            with cache.open(self._file.cache_key, self._file.size, self._write, self.name) as raw:
                if isinstance(raw, io.BytesIO):  # it has no name
                    raise CacheTooSmall(
                        f"{self.name} takes {self._file.size} bytes, and this process may not "
                        "write files as long.",
                        do="Raise its limit (ulimit -f), or copy the file to a local disk.",
                    )
                try:
                    found = Blosc2Backend(raw.name, self.name, {})
                except VolumeNotFound:
                    if attempt + 1 < _ATTEMPTS:
                        continue
                    raise
            break
        if (found.shape, found.disk_dtype) != (self.shape, self.disk_dtype):
            raise BadHeader(
                f"blosc2 finds {found.shape} {found.disk_dtype} in {self.name}, and its header "
                f"speaks of {self.shape} {self.disk_dtype}.",
                do="Upload the file again.",
            )
        return found

    def _write(self, raw: BinaryIO) -> None:
        with self._file.open() as stream:
            copy(stream, raw, self._file.size, self.name)


def _frame(file: RemoteFile) -> FrameHeader:
    """Return the header of a remote frame: one request, or two where it is long."""
    head = file.head(HEAD_BYTES)
    header, length = frame_sizes(head, file.name)
    if length > file.size:
        raise TruncatedVolume(
            f"{file.name} holds {file.size} bytes, and its header speaks of {length}.",
            do="Upload the file again.",
        )
    if header > len(head):
        head = file.head(header)
    return read_frame_header(head, file.name)
