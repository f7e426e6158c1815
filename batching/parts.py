"""Single parts of making a batch: ``diagnose`` runs them where batches are made.

The service runs tasks instead of jobs, so the loader's workers, channels and slots are used.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..core import Region, Sample
from ..core.counters import counts_here
from ..core.memory import disk_bytes
from ..spatial import LazyPatch, SpatialPlan
from ..spatial.lazy.read_plan import ReadPlan
from ..volumes import Volume, volume_statistics
from ..volumes.voxels import Voxels, touch
from .collate import ArraySpec, RealizedArray, batches_in, in_threads, new_arrays
from .job import Job, Maker, Recipe

# Limit of the voxels that one process keeps: 4 rotated patches of 96^3 with labels take 26 MB.
MOST_HELD_BYTES = 256 * 1024**2


@dataclass(frozen=True)
class Task:
    """One part of the making of one batch."""

    part: str  # ``"open"``, ``"fetch"``, ``"read"``, ``"kernel"`` or ``"transport"``
    job: Job
    reads: tuple[ReadPlan, ...]  # the reads of the batch

    @property
    def case(self) -> str:
        """Names of the cases, for messages."""
        return self.job.cases()


class PartResult(NamedTuple):
    """Result of a part, and its cost in the process that ran it."""

    result: Any
    seconds: float  # wall clock
    busy: float  # processor seconds of all threads of the process
    bytes_decoded: int  # bytes of decoded voxels
    disk_bytes: int  # bytes read from a disk and not from the page cache


class Parts:
    """An instruction that runs the part of each task."""

    # Unlike other instructions it has a state: voxels in memory, and the layout of a batch. Neither
    # is pickled. Threads of a process share the voxels; each has its own output memory.

    def __init__(
        self, maker: Maker, seed: int, epoch: int, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._maker = maker
        self._run = (seed, epoch)
        self._clock = clock
        self._batches: list[tuple[int, tuple[Any, ...]]] = []
        self._held_bytes = 0
        self._turn = 0
        self._lock = threading.RLock()
        self._slots: dict[Any, NDArray[Any]] = {}
        self._template: tuple[Any, _RecordedMemory] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return Parts, (self._maker, *self._run, self._clock)

    def __call__(self, items: Sequence[Any]) -> list[Any]:
        """Return a batch for ``transport`` tasks, and a ``PartResult`` for others."""
        return [
            self.transport(task) if task.part == "transport" else self._run_part(task)
            for task in items
        ]

    def _run_part(self, task: Task) -> PartResult:
        part, disk = getattr(self, task.part), disk_bytes()
        size, busy, start = counts_here().bytes_decoded, time.process_time(), self._clock()
        result = part(task)
        seconds, busy = self._clock() - start, time.process_time() - busy
        size = counts_here().bytes_decoded - size
        return PartResult(result, seconds, busy, size, disk_bytes() - disk)

    def open(self, task: Task) -> None:
        """Open the volumes, and fetch and decode a voxel of each, imports included."""
        for read in task.reads:
            start = read.region.start
            voxel = Region(start, tuple(n + 1 for n in start))
            read.volume.fetch(voxel)
            read.volume.read(voxel)

    def fetch(self, task: Task) -> tuple[str, ...]:
        """Fetch the stored bytes; return the volumes that cannot fetch without decoding."""
        pairs = zip(task.reads, in_threads(_fetch, task.reads), strict=True)
        return tuple(read.volume.name for read, is_apart in pairs if not is_apart)

    def read(self, task: Task) -> None:
        """Fetch and decode."""
        in_threads(_read, task.reads)

    def kernel(self, task: Task) -> dict[str, float]:
        """Realize patches with voxels in memory and known plans.

        Returns the seconds by key, of one thread, with the value ops of the patches.
        """
        seconds: dict[str, float] = {}
        with self._lock:
            items = self._in_memory(task)
        for item in items:
            for key, patch in item.items() if isinstance(item, Sample) else ():
                if isinstance(patch, LazyPatch):
                    own = (threading.get_ident(), patch.shape, patch.dtype)
                    out = self._slots.get(own)
                    if out is None:
                        out = self._slots[own] = np.empty(*own[1:])
                    start = self._clock()
                    patch.realize(out)
                    seconds[key] = seconds.get(key, 0.0) + self._clock() - start
        return seconds

    def _in_memory(self, task: Task) -> tuple[Any, ...]:
        """Return the items of a batch with voxels in memory, within the limit."""
        if not any(task.job.index == index for index, _ in self._batches):
            if self._batches and self._held_bytes >= MOST_HELD_BYTES:
                self._turn += 1
                return self._batches[self._turn % len(self._batches)][1]
            items, size = hold_reads(task.job.items)
            self._batches.append((task.job.index, items))
            self._held_bytes += size
            self.kernel(task)  # computes plans and the facts of volumes
        return next(items for index, items in self._batches if index == task.job.index)

    def transport(self, task: Task) -> Any:
        """Return a batch of the real layout with new, uninitialised arrays."""
        with self._lock:
            if self._template is None:
                memory = _RecordedMemory()
                with batches_in(memory):
                    self._template = self._make(task.job), memory
            batch, memory = self._template
        fresh = [array for specs in memory.specs for array in new_arrays(specs)]
        return _swap(batch, dict(zip(memory.addresses, fresh, strict=True)))

    def _make(self, job: Job) -> Any:
        if not isinstance(self._maker, Recipe):
            return self._maker.run(job, *self._run)
        items = self._maker.items(job)  # several, where functions gather them
        return items[0] if len(items) == 1 else list(items)


def _fetch(read: ReadPlan) -> bool:
    if read.volume.fetch(read.region) is not None:
        return True
    _read(read)
    return False


def _read(read: ReadPlan) -> None:
    touch(read.volume.read(read.region).array)


def hold_reads(items: Sequence[Any]) -> tuple[tuple[Any, ...], int]:
    """Read the voxels of lazy patches; return items with these in memory, and their bytes."""
    cache: dict[tuple[int, Region], Voxels] = {}
    copies = tuple(map_patches(items, lambda patch: _in_memory(patch, cache)))
    return copies, sum(voxels.array.nbytes for voxels in cache.values())


def _in_memory(
    patch: LazyPatch, cache: dict[tuple[int, Region], Voxels], plan: SpatialPlan | None = None
) -> LazyPatch:
    if patch.members:
        stack: Any = patch
        own = patch.plan if plan is None else plan
        plans = [(one, stack.plan_of(one, patch.widen(own))) for one in patch.members]
        result: LazyPatch = stack.with_members([_in_memory(one, cache, its) for one, its in plans])
        return result
    if len(patch.parts) > 1:
        return patch.with_parts([_in_memory(part, cache, plan) for part in patch.parts])
    volume: Any = patch.volume
    read = patch.read_plan
    if plan is not None:
        read = ReadPlan.of(volume, patch.widen(plan), patch.policy)
    region = read.region
    if region.is_empty or not isinstance(volume, Volume) or read.level:
        return patch
    key = (id(volume), region)
    if key not in cache:
        voxels = volume.read(region, rounds=False)
        cache[key] = replace(voxels, array=voxels.array.copy(order="K"))
    statistics = patch.statistics or volume_statistics
    wrapper: Any = HeldRegion(volume, region, cache[key])
    return replace(patch, volume=wrapper, statistics=lambda _: statistics(volume))


class HeldRegion:
    """A volume with one region in memory; the real volume serves all other reads."""

    def __init__(self, volume: Any, region: Region, voxels: Voxels) -> None:
        self._volume = volume
        self._region = region
        self._voxels = voxels

    def read(self, region: Region) -> Voxels:
        """Return voxels from the held region, or read others."""
        if region.intersect(self._region) != region:
            voxels: Voxels = self._volume.read(region)
            return voxels
        inside = region.shift([-a for a in self._region.start]).slices
        return replace(self._voxels, array=self._voxels.array[(slice(None), *inside)])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._volume, name)


def map_patches(items: Sequence[Any], change: Callable[[LazyPatch], LazyPatch]) -> Iterator[Any]:
    """Yield the items with each lazy patch changed, with unresolved plans."""
    # A plan is computed once per object; a second run has to compute it again.
    for item in items:
        if not isinstance(item, Sample):
            yield item
            continue
        fresh: dict[int, Any] = {}
        patches = {}
        for key, patch in item.items():
            if isinstance(patch, LazyPatch):
                pending = fresh.setdefault(id(patch.pending), replace(patch.pending))
                patches[key] = change(patch.with_pending(pending))
        yield item.with_data(**patches)


def reads_of(items: Sequence[Any]) -> tuple[ReadPlan, ...]:
    """Return the reads that the lazy patches among ``items`` need; reads headers only."""
    samples = (item for item in map_patches(items, lambda p: p) if isinstance(item, Sample))
    patches = (value for each in samples for value in each.values() if isinstance(value, LazyPatch))
    reads = (read for patch in patches for read in patch.reads())
    return tuple(r for r in reads if isinstance(r.volume, Volume) and not r.region.is_empty)


class _RecordedMemory:
    """Batch memory that records its arrays and their addresses."""

    def __init__(self) -> None:
        self.specs: list[Sequence[ArraySpec]] = []
        self.addresses: list[int] = []

    def take(self, specs: Sequence[ArraySpec]) -> list[NDArray[Any]]:
        """Return the arrays."""
        arrays = [np.empty(*spec) for spec in specs]
        self.specs.append(specs)
        self.addresses += [array.ctypes.data for array in arrays]
        return arrays


def _swap(thing: Any, arrays: dict[int, NDArray[Any]]) -> Any:
    """Return a batch with the arrays at these addresses replaced; others stay."""
    if isinstance(thing, dict):
        return {key: _swap(value, arrays) for key, value in thing.items()}
    if type(thing) in (list, tuple):
        return type(thing)(_swap(value, arrays) for value in thing)
    if isinstance(thing, RealizedArray):
        return RealizedArray(arrays.get(thing.array.ctypes.data, thing.array))
    if isinstance(thing, np.ndarray):
        return arrays.get(thing.ctypes.data, thing)
    if "torch" not in sys.modules:
        return thing
    import torch

    array = arrays.get(thing.data_ptr()) if isinstance(thing, torch.Tensor) else None
    same = array is not None and array.nbytes == thing.nbytes
    return torch.from_numpy(array) if same else thing
