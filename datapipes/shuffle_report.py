"""What an order of patches costs and gives: told from the plans, without reading a voxel."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any

from ..core import Sample
from ..core.errors import GraphError
from ..core.whole import whole
from ..graph import NoCut, Pipe, clone, origin_of, walk
from ..graph.served import split_of
from ..realizing.touched import touched
from ..spatial import without_reading
from .epoch import set_epoch
from .shuffle_plans import ShufflePlans
from .shuffle_spec import CHUNK_LOCAL, MEMORY_BYTES

# Enough for a mean, and planned in a second.
BATCHES = 256


@dataclass(frozen=True)
class ShuffleReport:
    """What an order of patches costs and gives."""

    batches: int
    """Batches that were planned."""
    samples: int
    """Samples in them."""
    volumes_per_batch: float
    """Different volumes in a batch: the mean. The more, the less alike are its samples."""
    fewest_volumes: int
    """Different volumes in the batch that has the fewest."""
    residency: float
    """Share of the chunks that patches touch that a cache still has, from 0 to 1."""
    bytes_per_sample: float
    """Decoded bytes that come anew into the cache, per sample."""
    cache_bytes: int
    """What that cache holds. It forgets what was used longest ago; there is one for all samples."""

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.samples} samples in {self.batches} batches\\n"
            f"volumes per batch   {self.volumes_per_batch:.2f} (at least {self.fewest_volumes})\\n"
            f"cache residency     {self.residency:.0%} of {self.cache_bytes / 2**20:g} MiB\\n"
            f"bytes per sample    {self.bytes_per_sample / 1e6:.3g} MB decoded"
        )


def shuffle_report(
    pipe: Pipe,
    *,
    seed: int = 0,
    epoch: int = 0,
    batches: int = BATCHES,
    cache_bytes: int | None = None,
) -> ShuffleReport:
    """Return what the order of a chain costs and gives. Headers are read, and no voxel.

    Parameters
    ----------
    pipe
        The chain.
    seed, epoch
        The run.
    batches
        Batches of it that are planned, from the first.
    cache_bytes
        Decoded chunks that are kept; by default what ``ShuffleSpec.chunk_local`` asks for, or
        256 MiB.

    Raises
    ------
    GraphError
        The chain cannot be split, so nothing is planned.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> pipe = from_cases([{"image": np.zeros((8, 8, 8))}] * 4).open_volume()
    >>> pipe = pipe.lazy_patch(4, samples_per_volume=4)
    >>> shuffle_report(pipe.batch_patches(4)).volumes_per_batch
    1.0
    """
    split = split_of(pipe)
    if isinstance(split, NoCut):
        raise GraphError(f"the order is not planned: {split.reason}").at(origin_of(pipe))
    planner = clone(split.planner)
    set_epoch(planner, seed, epoch)
    if cache_bytes is None:
        specs = [p.spec for p in walk(planner) if isinstance(p, ShufflePlans)]
        local = [spec.size for spec in specs if spec.kind == CHUNK_LOCAL]
        cache_bytes = local[-1] if local else MEMORY_BYTES
    cache = _Cache(whole("cache_bytes", cache_bytes, least=0, unit="bytes"))
    counts, samples = [], 0
    with without_reading():
        items = islice(planner, whole("batches", batches, least=1) * split.group)
        for batch in _batches(items, split.group):
            counts.append(len({_volume(item) for item in batch}))
            samples += len(batch)
            for item in batch:
                for each in touched(item):
                    cache.touch(each.chunk, each.bytes)
    return ShuffleReport(
        batches=len(counts),
        samples=samples,
        volumes_per_batch=sum(counts) / max(1, len(counts)),
        fewest_volumes=min(counts, default=0),
        residency=cache.hits / max(1, cache.touches),
        bytes_per_sample=cache.brought / max(1, samples),
        cache_bytes=cache.most,
    )


def _batches(items: Iterator[Any], size: int) -> Iterator[list[Any]]:
    while batch := list(islice(items, size)):
        yield batch


def _volume(item: Any) -> Any:
    return item.identity[:1] if isinstance(item, Sample) else id(item)


class _Cache:
    """Counts what a cache of so many bytes would have had."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.hits = self.touches = self.brought = 0
        self._held: OrderedDict[Any, int] = OrderedDict()
        self._bytes = 0

    def touch(self, chunk: Any, size: int) -> None:
        """Use a chunk; bring it in if it is not there, and let go of what was used long ago."""
        self.touches += 1
        if chunk in self._held:
            self.hits += 1
            self._held.move_to_end(chunk)
            return
        self.brought += size
        self._held[chunk] = size
        self._bytes += size
        while self._bytes > self.most:
            _, gone = self._held.popitem(last=False)
            self._bytes -= gone
