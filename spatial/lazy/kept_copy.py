"""The kept copy of a virtual volume: its location, and how it is written.

The copy is a sharded zarr v3, as ``convert`` writes it, in a folder or at a URL. The first process
that needs the copy writes it shard by shard; others wait. A copy that a killed process began is
continued. The copy's name is a digest of its content and ops, so a change gives a new name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core import Region
from ...core.errors import CacheBusy, DestinationBusy
from ...core.lru_cache import cached_property
from ...intensity.value_op import same_as
from ...storage.content import content_key
from ...storage.disk_cache import own_folder
from ...storage.location import is_url
from ...storage.volume_cache import LOCK_TIMEOUT
from ...volumes import Volume
from ...volumes.backend import Backend, needed_of
from ...volumes.chunks.chunked_array import NeededChunks
from ...volumes.conversion.convert import open_copy, version_of, write_planned
from ...volumes.conversion.convert_plan import ConvertPlan, plan_conversion
from ...volumes.conversion.destination import destination_of
from ...volumes.header import Header
from ...volumes.scheme import ReadScheme, SchemeRefusal, StoreLayout
from ...volumes.session import Source
from ...volumes.source import LocatedSource, Options
from .virtual_volume import VirtualVolume, digest_of_made, refuse_drawn


class KeptCopy(Volume):
    """A volume that is written at its first read; its header is known before."""

    may_round = False

    @property
    def _copy(self) -> KeptSource:
        """The copy, of which this may be a channel."""
        source: Any = self._source
        copy: KeptSource = getattr(source, "source", source)
        return copy

    @property
    def place(self) -> str:
        """The folder or URL in which it is kept, without credentials."""
        return destination_of(self._copy.place, self._copy.storage_options).name

    def layout(self, volumes: int = 1) -> StoreLayout:
        """Return how ``volumes`` copies like this one are stored, whether they are there or not."""
        plan, remote = self._copy.plan(), is_url(self._copy.place)
        return StoreLayout.of(plan.result, volumes, remote=remote, shard=plan.shard)

    def needed_chunks(self, region: Region) -> NeededChunks | None:
        """Return the chunks that a read needs, of all channels, whether they are there or not."""
        return needed_of(self._copy.plan().result, region)

    def _of(self, source: Source, kind: str) -> Volume:
        return KeptCopy.of_source(source, kind)

    def adjust(self, scheme: ReadScheme) -> ReadScheme | SchemeRefusal:
        """Return the scheme unchanged: a copy follows it."""
        return scheme


@dataclass(frozen=True, eq=False)
class KeptSource:
    """The copy of a made volume; pickles as its source and settings."""

    volume: VirtualVolume  # source of the copy
    place: str = field(repr=False)  # absolute folder or URL of all copies
    chunk: int | None = None  # edge of the decode unit in voxels; None: default
    codec: str = "lz4"  # ``"lz4"``, ``"lz4hc"``, ``"zstd"`` or ``"none"``
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # for fsspec

    name = same_as("volume.name")
    """Path or URL of the stored volume."""

    @cached_property
    def token(self) -> str:
        """Equal for equal sources, in every process."""
        how = (self.place, self.chunk, self.codec)
        return content_key(digest_of_made(self.volume, at_open=True), how)

    def plan(self) -> ConvertPlan:
        """Return the chunk layout of the copy; reads only headers."""
        return plan_conversion(self.volume.header, chunk=self.chunk, codec=self.codec)

    def known_header(self) -> Header:
        """Return the header of the copy, whether it is there or not."""
        return self.plan().result

    def open(self) -> Backend:
        """Open the copy; write it first if none has the current content."""
        refuse_drawn(self.volume.patch)
        plan = self.plan()
        key = content_key(version_of(self.volume), plan.fingerprint())
        if not is_url(self.place):
            # No size limit: the user owns this folder.
            return open_copy(own_folder(Path(self.place)), key, self.volume, plan)
        url = f"{self.place.rstrip('/')}/{key}.nii.zarr"
        target = destination_of(url, self.storage_options)
        if (target.record() or {}).get("key") != key:
            try:
                with target.lock(LOCK_TIMEOUT):
                    write_planned(self.volume, plan, target)
            except DestinationBusy as error:  # the caller reads and does not write
                raise CacheBusy(error.message, do=error.do) from error
        return LocatedSource(url, Options(storage_options=self.storage_options)).open()

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}
