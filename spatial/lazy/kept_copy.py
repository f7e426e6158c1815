"""The copy of a virtual volume that is kept: where it lies, and how it gets there.

It is a sharded zarr v3, as ``convert`` writes it, in a folder or behind a URL. Whoever needs it
first writes it, shard by shard, while others wait; what a killed process has written is continued.
Its name is a digest of what was done to which content, so what changes gets another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...core import Region
from ...core.errors import CacheBusy, DestinationBusy
from ...core.lru_cache import cached_property
from ...storage.content import content_key
from ...storage.disk_cache import own_folder
from ...storage.location import absolute_place, is_url
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
from .content_digest import digest_of_made, refuse_drawn
from .lazy_patch import LazyPatch
from .virtual_volume import VirtualVolume


class KeptCopy(Volume):
    """A volume that is written when it is first read, and known before."""

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
        """Return the scheme: it is followed."""
        return scheme


@dataclass(frozen=True, eq=False)
class KeptSource:
    """The copy of a made volume. It travels as what it is made of."""

    volume: VirtualVolume  # what is kept
    place: str = field(repr=False)  # folder, absolute, or URL, of all copies
    chunk: int | None = None  # voxels along each axis of the decode unit; None as usual
    codec: str = "lz4"  # ``"lz4"``, ``"lz4hc"``, ``"zstd"`` or ``"none"``
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # for fsspec

    @property
    def name(self) -> str:
        """Path or URL of the stored volume."""
        return self.volume.name

    @cached_property
    def token(self) -> str:
        """Equal for equal sources, in every process."""
        how = (self.place, self.chunk, self.codec)
        return content_key(digest_of_made(self.volume, at_open=True), how)

    def plan(self) -> ConvertPlan:
        """Return how the copy lies in its chunks; looks at headers alone."""
        return plan_conversion(self.volume.header, chunk=self.chunk, codec=self.codec)

    def known_header(self) -> Header:
        """Return the header of the copy, whether it is there or not."""
        return self.plan().result

    def open(self) -> Backend:
        """Open the copy; make it if there is none of the content as it is now."""
        refuse_drawn(self.volume.patch)
        plan = self.plan()
        key = content_key(version_of(self.volume), plan.fingerprint())
        if not is_url(self.place):
            # Without a limit of its own: a folder that somebody names is theirs.
            return open_copy(own_folder(Path(self.place)), key, self.volume, plan)
        url = f"{self.place.rstrip('/')}/{key}.nii.zarr"
        target = destination_of(url, self.storage_options)
        if (target.record() or {}).get("key") != key:
            try:
                with target.lock(LOCK_TIMEOUT):
                    write_planned(self.volume, plan, target)
            except DestinationBusy as error:  # whoever asked for voxels does not write
                raise CacheBusy(error.what, do=error.do) from error
        return LocatedSource(url, Options(storage_options=self.storage_options)).open()

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def kept_in(
    patch: LazyPatch,
    place: str,
    *,
    because: str,
    chunk: int | None = None,
    codec: str = "lz4",
    storage_options: Mapping[str, Any] | None = None,
) -> LazyPatch:
    """Return a patch that begins with what this one gives, read from a copy that is kept."""
    # It is of a whole volume, and nothing may have been drawn for it. ``place`` is a folder or URL,
    # ``because`` says after what, for ``explain``; the others are as for ``convert``.
    volume: Any = patch.flush_plan(because=because, is_tiled=True).volume
    source = KeptSource(volume, absolute_place(place), chunk, codec, dict(storage_options or {}))
    copy = KeptCopy.of_source(source, patch.kind)
    return patch.flush_plan(because=because, is_tiled=True, copy=copy)
