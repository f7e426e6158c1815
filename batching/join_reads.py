"""Read what neighbouring patches of one batch need together, once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..core import CallSite, Region, Sample
from ..core.context import holding
from ..core.errors import add_location
from ..spatial import LazyPatch
from ..spatial.lazy.lazy_patch import patches_of
from ..spatial.lazy.read_plan import ChunkBytes
from ..storage.ranges import READ_KEY
from ..volumes import Volume, volume_statistics
from ..volumes.voxels import Voxels
from .collate import in_threads


class HeldRegion:
    """A volume of which one region is in memory; everything else is asked of the real one."""

    def __init__(self, volume: Any, region: Region, voxels: Voxels) -> None:
        self._volume = volume
        self._region = region
        self._voxels = voxels

    def read(self, region: Region, *, rounded: bool = True) -> Voxels:
        """Return voxels of the region that is there, or read others."""
        voxels: Voxels
        if region.intersect(self._region) != region:
            voxels = self._volume.read(region, rounded=rounded)
            return voxels
        inside = region.shift([-a for a in self._region.start]).slices
        voxels = replace(self._voxels, array=self._voxels.array[(slice(None), *inside)])
        return self._volume.round_labels(voxels, region) if rounded else voxels

    def __getattr__(self, name: str) -> Any:
        return getattr(self._volume, name)


def with_voxels(patch: LazyPatch, region: Region, voxels: Voxels) -> LazyPatch:
    """Return a patch of a stored volume that finds a region of it in memory."""
    volume: Any = patch.volume
    statistics = patch.statistics or volume_statistics
    wrapper: Any = HeldRegion(volume, region, voxels)
    return replace(patch, volume=wrapper, statistics=lambda _: statistics(volume))


# One block of four image patches of 160^3 in float32, beside the batch itself.
MOST_BYTES = 64 * 1024**2


@dataclass(frozen=True)
class JoinReads:
    """Let lazy patches of a batch that lie beside each other share one read."""

    # Patches of the same volume are joined while the block around them takes no more chunks than
    # they take one by one. The voxels of a patch stay the same.

    origin: CallSite | None = None
    most_bytes: int = MOST_BYTES  # what one block may take, decoded

    def __call__(self, items: Sequence[Any]) -> list[Any]:
        """Return the samples; those that were joined look into the same block."""
        reads = [
            Reader(number, key, part, place)
            for number, item in enumerate(items)
            for key, patch in patches_of(item).items()
            # Ops on all channels may look around: more is read than each part knows of.
            if not (patch.members and patch.values)
            for place, part in enumerate(patch.parts)
            # Those that read one region of one stored volume.
            if isinstance(part.volume, Volume) and not part.read_plan.stored_channels
            if not (part.read_plan.region.is_empty or part.read_plan.level)
        ]
        blocks = [block for block in group_reads(reads, self.most_bytes) if len(block.readers) > 1]
        updates = [dict[str, Any]() for _ in items]
        for block, voxels in zip(blocks, in_threads(self._read, blocks), strict=True):
            for one in block.readers:
                patch = updates[one.item].get(one.key, items[one.item][one.key])
                parts = list(patch.parts)
                parts[one.place] = with_voxels(one.patch, block.region, voxels)
                updates[one.item][one.key] = patch.with_parts(parts)
        pairs = zip(items, updates, strict=True)
        return [item.with_data(**new) if new else item for item, new in pairs]

    def _read(self, block: JoinedRead) -> Voxels:
        first = block.readers[0]
        volume: Any = first.patch.volume
        try:
            with holding(READ_KEY, first.key):
                voxels: Voxels = volume.read(block.region, rounded=False)
        except Exception as error:
            raise add_location(error, self.origin)  # noqa: B904  the very same error
        return voxels


@dataclass(frozen=True)
class Reader:
    """A patch that reads one region of one stored volume."""

    item: int  # which sample
    key: str
    patch: LazyPatch
    place: int = 0  # which of the volumes that are stacked under this key


@dataclass(frozen=True)
class JoinedRead:
    """Patches that are read together."""

    region: Region
    readers: tuple[Reader, ...]
    chunk_bytes: Mapping[Any, int]
    """Bytes by chunk that the patches touch; a chunk that several touch is decoded once anyway."""

    @property
    def bytes(self) -> int:
        """What they touch."""
        return sum(self.chunk_bytes.values())


def group_reads(reads: Sequence[Reader], most_bytes: int) -> list[JoinedRead]:
    """Return who is read together; a patch that gains nothing is a block of its own."""
    blocks: list[JoinedRead] = []
    entries = [(id(one.patch.volume), one.patch.read_plan.region, one) for one in reads]
    for volume_id, region, one in sorted(entries, key=lambda each: (each[0], each[1].start)):
        volume: Any = one.patch.volume
        chunk_bytes: dict[Any, int] = {}
        if volume.chunks is None:  # bare voxels are read as they lie, by each patch for itself
            chunk_bytes[one.item, one.key, one.place] = _block_bytes(volume, region)
        else:
            chunks = (each for read in one.patch.reads() for each in read.chunks(()))
            chunk_bytes.update((each.chunk, each.bytes) for each in chunks)
        for place, block in enumerate(blocks):
            if id(block.readers[0].patch.volume) != volume_id:
                continue
            start = tuple(map(min, block.region.start, region.start))
            stop = tuple(map(max, block.region.stop, region.stop))
            both = {**block.chunk_bytes, **chunk_bytes}
            wider = JoinedRead(Region(start, stop), (*block.readers, one), both)
            if _block_bytes(volume, wider.region) <= min(wider.bytes, most_bytes):
                blocks[place] = wider
                break
        else:
            blocks.append(JoinedRead(region, (one,), chunk_bytes))
    return blocks


def _block_bytes(volume: Any, region: Region) -> int:
    """Return the bytes of the chunks of a region; of the region itself where there are none."""
    chunks = volume.needed_chunks(region)
    if chunks is not None:
        return int(chunks.bytes)
    itemsize: int = np.dtype(volume.disk_dtype).itemsize
    return math.prod(region.shape) * int(volume.shape[0]) * itemsize


def needed_chunks(sample: Any) -> Iterator[ChunkBytes]:
    """Yield the chunks that the lazy patches of a sample read."""
    for key, patch in patches_of(sample).items():
        for place, read in enumerate(patch.reads()):
            yield from read.chunks((sample.identity[:1], key, place))


def plan_apart(sample: Sample) -> Sample:
    """Return a sample whose plans are worked out anew: what is estimated for it stays with it."""
    apart = {
        key: patch.with_pending(patch.pending.following(sample.identity, patch.pending.steps))
        for key, patch in patches_of(sample).items()
    }
    return sample.with_data(**apart)
