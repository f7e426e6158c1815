"""``.nii.gz``: the header from the first bytes, the voxels decoded once per machine.

Random access inside gzip costs a fraction of decoding everything, again and again.
So the first read of voxels decodes the file into the cache directory, and from
then on it is a mapped ``.nii``.
"""

from __future__ import annotations

import gzip
import os
import threading
import zlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from types import ModuleType
from typing import Any, BinaryIO

from numpy.typing import NDArray

from ..core import TALLY, Region
from ..core.errors import BadHeader, CorruptVolume, TruncatedVolume
from .backend import Backend, Channels
from .cache_directory import cache_budget, cache_directory
from .decoded_cache import DecodedCache
from .fetched import touch
from .local_file import LocalFile, open_local, stamp_of
from .mapped import MappedBackend
from .nifti import mapped_view
from .nifti_header import NIFTI2_BYTES, NiftiHeader, parse_nifti
from .remote_file import RemoteFile
from .voxels import Voxels

# Bytes that are surely enough to decode the header from.
HEAD_BYTES = 64 * 1024
# Decoded piece by piece; larger pieces gain nothing.
_PIECE_BYTES = 1024**2
# Deflate stores at most 1032 bytes in one (zlib.net/zlib_tech.html); more is a wrong header.
_BEST_RATIO = 1032
_GZIP = 16 + zlib.MAX_WBITS


class DecodedNifti(Backend):
    """A ``.nii.gz``: its header, and a mapped raw copy once voxels are asked for."""

    def __init__(self, head: bytes, size: int, stamp: tuple[int, ...], name: str) -> None:
        self._fields = parse_nifti(_decoded_head(head, name), name)
        TALLY.count(headers=1)
        if self._fields.end > size * _BEST_RATIO:
            raise TruncatedVolume(
                f"{name} holds {size} bytes, which cannot decode to the "
                f"{self._fields.end} that its header speaks of.",
                do="Copy or download the file again.",
            )
        self._lock = threading.Lock()
        self._decoded: MappedBackend | None = None
        super().__init__(self._fields.header("stream", stamp), name)

    @property
    @abstractmethod
    def cache_key(self) -> str:
        """What the decoded file is called."""

    @abstractmethod
    def open_compressed(self) -> AbstractContextManager[BinaryIO]:
        """Open the compressed file at its beginning."""

    def read(self, region: Region, channels: Channels | None = None) -> Voxels:
        """Return a view of the decoded file, which the first call may have to make."""
        with self._lock:
            if self._decoded is None:
                self._decoded = MappedBackend(self._decode(), self.header, self.name)
        return self._decoded.read(region, channels)

    def fetch(self, region: Region, channels: Channels | None = None) -> int:
        """Touch the pages of the decoded file, which the first call may have to make."""
        return touch(self.read(region, channels).array)

    def _decode(self) -> NDArray[Any]:
        cache = DecodedCache(cache_directory(), cache_budget())
        with cache.open(self.cache_key, self._fields.end, self._write, self.name) as raw:
            return mapped_view(raw, self._fields)

    def _write(self, raw: BinaryIO) -> None:
        with self.open_compressed() as compressed:
            decode(compressed, raw, self._fields, self.name)


class LocalNiftiGz(LocalFile, DecodedNifti):
    """A ``.nii.gz`` on a local disk."""

    def __init__(self, path: str, name: str) -> None:
        self.path = path
        with open_local(path) as file:
            stamp = stamp_of(os.fstat(file.fileno()))
            super().__init__(file.read(HEAD_BYTES), stamp[0], stamp, name)

    @property
    def cache_key(self) -> str:
        """Path, size and time of writing, digested."""
        return self.content_key

    @contextmanager
    def open_compressed(self) -> Iterator[BinaryIO]:
        """Open the file, if it is still the one whose header was read."""
        with open_local(self.path) as file:
            if stamp_of(os.fstat(file.fileno())) != self.header.stamp:
                raise CorruptVolume(
                    f"{self.name} was written again since its header was read.",
                    do="Make a new Volume once the file is written.",
                )
            yield file


class RemoteNiftiGz(DecodedNifti):
    """A ``.nii.gz`` behind a URL, streamed once."""

    remote = True

    def __init__(self, url: str, options: Mapping[str, Any], name: str) -> None:
        self._file = RemoteFile(url, options, name)
        super().__init__(self._file.head(HEAD_BYTES), self._file.size, (), name)

    @property
    def cache_key(self) -> str:
        """URL, size and version, digested."""
        return self._file.cache_key

    @property
    def content_key(self) -> str:
        """A name for this file in this version, where the store tells versions apart."""
        return self._file.content_key

    def open_compressed(self) -> AbstractContextManager[BinaryIO]:
        """Open the file to stream it."""
        return self._file.open()


def decode(compressed: BinaryIO, raw: BinaryIO, fields: NiftiHeader, name: str) -> None:
    """Decode a gzip stream into ``raw``: exactly the bytes that the header speaks of.

    Raises
    ------
    TruncatedVolume
        The stream ends early.
    CorruptVolume
        It goes on too long, or its check sums are wrong.
    """
    written = 0
    module = _fastest_gzip()
    try:
        with module.open(compressed, "rb") as stream:
            while piece := stream.read(_PIECE_BYTES):
                written += len(piece)
                if written > fields.end:
                    raise CorruptVolume(
                        f"{name} decodes to more than the {fields.end} bytes that its header "
                        "speaks of.",
                        do="Write the file again; the header and the voxels do not fit.",
                    )
                raw.write(piece)
    except EOFError:
        pass  # counted below
    except _corrupt_errors(module) as error:
        raise CorruptVolume(
            f"{name} cannot be decoded after {written} of {fields.end} bytes: {error}.",
            do="Copy or download the file again.",
        ) from error
    if written < fields.end:
        raise TruncatedVolume(
            f"{name} ends after about {written} of {fields.end} bytes, decoded, that its header "
            "speaks of.",
            do="Copy or download the file again.",
        )


def _decoded_head(head: bytes, name: str) -> bytes:
    """Return the beginning of what ``head`` decodes to: enough for a NIfTI header."""
    try:
        return zlib.decompressobj(_GZIP).decompress(head, NIFTI2_BYTES)
    except zlib.error:
        raise BadHeader(
            f"{name} is not compressed with gzip: it begins with {head[:4]!r}.",
            do="Name it .nii if it is not compressed.",
        ) from None


def _fastest_gzip() -> ModuleType:
    """Return isal's gzip, about twice as fast, or Python's."""
    try:
        from isal import igzip
    except ImportError:
        return gzip
    return igzip


def _corrupt_errors(module: ModuleType) -> tuple[type[Exception], ...]:
    """Return what corrupt data raise in ``module``; an early end raises ``EOFError``."""
    isal_zlib = getattr(module, "isal_zlib", None)
    own = () if isal_zlib is None else (isal_zlib.error,)
    return (zlib.error, gzip.BadGzipFile, *own)
