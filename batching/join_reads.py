"""Read what neighbouring patches of one batch need together, once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..core import CallSite, OrientedBox, Region, Sample
from ..core.errors import add_location
from ..intensity import RecordedStatistics
from ..spatial import LazyPatch
from ..spatial.lazy.lazy_patch import patches_of
from ..spatial.lazy.read_plan import ChunkBytes
from ..storage.ranges import reads_of
from ..volumes import Volume, volume_statistics
from ..volumes.voxels import Voxels
from .threads import in_threads


class HeldRegion:
    """A volume of which one region is in memory; everything else is asked of the real one."""

    def __init__(self, volume: Any, region: Region, voxels: Voxels) -> None:
        self._volume = volume
        self._region = region
        self._voxels = voxels

    def read(self, region: Region, box: OrientedBox | None = None) -> Voxels:
        """Return voxels of the region that is there, or read others."""
        if region.intersect(self._region) != region:
            voxels: Voxels = self._volume.read(region, box)
            return voxels
        inside = region.shift([-a for a in self._region.start]).slices
        return replace(self._voxels, array=self._voxels.array[(slice(None), *inside)])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._volume, name)


def with_voxels(patch: LazyPatch, region: Region, voxels: Voxels) -> LazyPatch:
    """Return a patch of a stored volume that finds a region of it in memory."""
    volume: Any = patch.volume
    statistics = patch.statistics or volume_statistics

    def of_the_real_one(_: Any) -> RecordedStatistics:
        return statistics(volume)

    held: Any = HeldRegion(volume, region, voxels)
    return replace(patch, volume=held, statistics=of_the_real_one)


# One block of four image patches of 160^3 in float32, beside the batch itself.
MOST_BYTES = 64 * 1024**2


@dataclass(frozen=True)
class JoinReads:
    """Let lazy patches of a batch that lie beside each other share one read.

    Patches of the same volume are joined while the block around them takes no more chunks than
    they take one by one. The voxels of a patch stay the same.
    """

    origin: CallSite | None = None
    """Where the user wrote the pipe."""
    most_bytes: int = MOST_BYTES
    """What one block may take, decoded."""

    def __call__(self, items: Sequence[Any]) -> list[Any]:
        """Return the samples; those that were joined look into the same block."""
        wanted = [
            Reader(number, key, part, place)
            for number, item in enumerate(items)
            if isinstance(item, Sample)
            for key, thing in item.items()
            # Ops on all channels may look around: more is read than each part knows of.
            if isinstance(thing, LazyPatch) and not (thing.members and thing.values)
            for place, part in enumerate(thing.parts)
            if _is_plain(part)
        ]
        blocks = [block for block in joined(wanted, self.most_bytes) if len(block.parts) > 1]
        read = in_threads(self._read, blocks)
        changed = [dict[str, Any]() for _ in items]
        for block, voxels in zip(blocks, read, strict=True):
            for part in block.parts:
                patch = changed[part.item].get(part.key, items[part.item][part.key])
                parts = list(patch.parts)
                parts[part.place] = with_voxels(part.patch, block.region, voxels)
                changed[part.item][part.key] = patch.with_parts(parts)
        return [
            item.with_data(**new) if new else item for item, new in zip(items, changed, strict=True)
        ]

    def _read(self, block: Block) -> Voxels:
        volume: Any = block.parts[0].patch.volume
        try:
            with reads_of(block.parts[0].key):
                voxels: Voxels = volume.read(block.region)
        except Exception as error:
            raise add_location(error, self.origin)  # noqa: B904  the very same error
        return voxels


@dataclass(frozen=True)
class Reader:
    """A patch that reads one region of one stored volume."""

    item: int
    """Which sample."""
    key: str
    """Which of its volumes."""
    patch: LazyPatch
    place: int = 0
    """Which of the volumes that are stacked under this key."""

    @property
    def region(self) -> Region:
        """What it reads."""
        return self.patch.read_plan.region


@dataclass(frozen=True)
class Block:
    """Patches that are read together."""

    region: Region
    """What is read."""
    parts: tuple[Reader, ...]
    """For whom."""
    touched: Mapping[Any, int]
    """Bytes by chunk that the patches touch; a chunk that several touch is decoded once anyway."""

    @property
    def bytes(self) -> int:
        """What they touch."""
        return sum(self.touched.values())

    def with_part(self, part: Reader, touched: Mapping[Any, int]) -> Block:
        """Return the block around one more patch."""
        start = tuple(map(min, self.region.start, part.region.start))
        stop = tuple(map(max, self.region.stop, part.region.stop))
        return Block(Region(start, stop), (*self.parts, part), {**self.touched, **touched})


def joined(wanted: Sequence[Reader], most_bytes: int) -> list[Block]:
    """Return who is read together; a patch that gains nothing is a block of its own."""
    blocks: list[Block] = []
    for part in sorted(wanted, key=lambda one: (id(one.patch.volume), one.region.start)):
        touched = _touched(part)
        for place, block in enumerate(blocks):
            if block.parts[0].patch.volume is not part.patch.volume:
                continue
            wider = block.with_part(part, touched)
            if _block_bytes(part.patch.volume, wider.region) <= min(wider.bytes, most_bytes):
                blocks[place] = wider
                break
        else:
            blocks.append(Block(part.region, (part,), touched))
    return blocks


def _touched(part: Reader) -> dict[Any, int]:
    volume: Any = part.patch.volume
    if volume.chunks is None:  # bare voxels are read as they lie, by each patch for itself
        return {(part.item, part.key, part.place): _block_bytes(volume, part.region)}
    return {each.chunk: each.bytes for read in part.patch.reads() for each in read.chunks(())}


def _block_bytes(volume: Any, region: Region) -> int:
    """Return the bytes of the chunks of a region; of the region itself where there are none."""
    needed = volume.needed(region)
    if needed is not None:
        return int(needed.bytes)
    itemsize: int = np.dtype(volume.disk_dtype).itemsize
    return math.prod(region.shape) * int(volume.shape[0]) * itemsize


def _is_plain(patch: LazyPatch) -> bool:
    """Whether a patch reads one region of one stored volume."""
    if not isinstance(patch.volume, Volume):
        return False
    return not (patch.read_plan.region.is_empty or patch.read_plan.level)


def needed_chunks(sample: Any) -> Iterator[ChunkBytes]:
    """Yield the chunks that the lazy patches of a sample read."""
    for key, patch in patches_of(sample).items():
        for place, read in enumerate(patch.reads()):
            yield from read.chunks((sample.identity[:1], key, place))


def planned_apart(sample: Sample) -> Sample:
    """Return a sample whose plans are worked out anew: what is estimated for it stays with it."""
    apart = {
        key: patch.with_pending(patch.pending.following(sample.identity, patch.pending.steps))
        for key, patch in patches_of(sample).items()
    }
    return sample.with_data(**apart)
