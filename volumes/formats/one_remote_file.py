"""Backends whose voxels lie in one file behind a URL, whatever its format."""

from __future__ import annotations

from collections.abc import Hashable

from ...core import OrientedBox, Region
from ...core.remembered import cached_property
from ...storage.remote import RemoteFile
from ..backend import Backend, Channels
from ..voxels import Voxels
from .chunked_backend import ChunkedBackend


class OneRemoteFile(Backend):
    """A backend of one remote file, mixed in with how its voxels are read."""

    remote = True
    _file: RemoteFile

    @property
    def content_key(self) -> str:
        """A name for this file in this version, where the store tells versions apart."""
        return self._file.content_key

    @cached_property
    def version(self) -> Hashable:
        """Return what the store says of this version."""
        return self._file.content_key

    @property
    def is_current(self) -> bool:
        """Whether no read has found another version."""
        return self._file.is_current


class RemoteChunks(OneRemoteFile, ChunkedBackend):
    """One whose chunks are fetched by those who know of objects only: errors name the URL."""

    def read(
        self, region: Region, channels: Channels | None = None, box: OrientedBox | None = None
    ) -> Voxels:
        """Read the chunks that the region touches, of these only those that the box touches."""
        with self._file.errors():
            return super().read(region, channels, box)

    def fetch(
        self, region: Region, channels: Channels | None = None, box: OrientedBox | None = None
    ) -> int | None:
        """Fetch the stored chunks, without decoding them."""
        with self._file.errors():
            return super().fetch(region, channels, box)
