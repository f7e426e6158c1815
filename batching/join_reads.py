"""Read what neighbouring patches of one batch need together, once."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..core import OrientedBox, Origin, Region, Sample
from ..core.errors import placed
from ..intensity import RecordedStatistics
from ..spatial import LazyPatch
from ..spatial.lazy.made_volume import stored_reads
from ..storage.ranges import reads_of
from ..volumes import Volume, volume_statistics
from ..volumes.voxels import Voxels
from .threads import in_threads
from .touched import chunks_of

# One block of four image patches of 160^3 in float32, beside the batch itself.
MOST_BYTES = 64 * 1024**2


@dataclass(frozen=True)
class JoinReads:
    """Let lazy patches of a batch that lie beside each other share one read.

    Patches of the same volume are joined while the block around them takes no more chunks than
    they take one by one. The voxels of a patch stay the same.
    """

    origin: Origin | None = None
    """Where the user wrote the pipe."""
    most_bytes: int = MOST_BYTES
    """What one block may take, decoded."""

    def __call__(self, items: Sequence[Any]) -> list[Any]:
        """Return the samples; those that were joined look into the same block."""
        wanted = [
            Wanted(number, key, part, part.source_region, place)
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
                parts[part.place] = _looking_into(part.patch, block.region, voxels)
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
            raise placed(error, self.origin)  # noqa: B904  the very same error
        return voxels


@dataclass(frozen=True)
class Wanted:
    """What one patch reads."""

    item: int
    """Which sample."""
    key: str
    """Which of its volumes."""
    patch: LazyPatch
    region: Region
    place: int = 0
    """Which of the volumes that are stacked under this key."""


@dataclass(frozen=True)
class Block:
    """Patches that are read together."""

    region: Region
    """What is read."""
    parts: tuple[Wanted, ...]
    """For whom."""
    touched: Mapping[Any, int]
    """Bytes by chunk that the patches touch; a chunk that several touch is decoded once anyway."""

    @property
    def bytes(self) -> int:
        """What they touch."""
        return sum(self.touched.values())

    def with_part(self, part: Wanted, touched: Mapping[Any, int]) -> Block:
        """Return the block around one more patch."""
        start = tuple(map(min, self.region.start, part.region.start))
        stop = tuple(map(max, self.region.stop, part.region.stop))
        return Block(Region(start, stop), (*self.parts, part), {**self.touched, **touched})


def joined(wanted: Sequence[Wanted], most_bytes: int) -> list[Block]:
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


def _touched(part: Wanted) -> dict[Any, int]:
    volume: Any = part.patch.volume
    if volume.chunks is None:  # bare voxels are read as they lie, by each patch for itself
        return {(part.item, part.key, part.place): _block_bytes(volume, part.region)}
    reads = stored_reads(part.patch)
    return {each.chunk: each.bytes for read in reads for each in chunks_of((), read)}


def _block_bytes(volume: Any, region: Region) -> int:
    """Return the bytes of the chunks of a region; of the region itself where there are none."""
    needed = volume.needed(region)
    if needed is not None:
        return int(needed.bytes)
    itemsize: int = np.dtype(volume.disk_dtype).itemsize
    return math.prod(region.shape) * int(volume.shape[0]) * itemsize


def _is_plain(patch: LazyPatch) -> bool:
    """Whether a patch reads one region of one stored volume."""
    plain = isinstance(patch.volume, Volume) and not patch.source_region.is_empty
    return plain and not patch.reads_from().level


def _looking_into(patch: LazyPatch, region: Region, voxels: Voxels) -> LazyPatch:
    volume: Any = patch.volume
    statistics = patch.statistics or volume_statistics

    def of_the_real_one(_: Any) -> RecordedStatistics:
        return statistics(volume)

    block: Any = _InBlock(volume, region, voxels)
    return replace(patch, volume=block, statistics=of_the_real_one)


class _InBlock:
    """A volume of which one region is in memory; everything else is asked of the real one."""

    def __init__(self, volume: Any, region: Region, voxels: Voxels) -> None:
        self._volume = volume
        self._region = region
        self._voxels = voxels

    def read(self, region: Region, box: OrientedBox | None = None) -> Voxels:
        """Return voxels of the block, or read others."""
        if region.intersect(self._region) != region:
            voxels: Voxels = self._volume.read(region, box)
            return voxels
        inside = tuple(
            slice(a - start, b - start)
            for (a, b), start in zip(region, self._region.start, strict=True)
        )
        return replace(self._voxels, array=self._voxels.array[(slice(None), *inside)])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._volume, name)
