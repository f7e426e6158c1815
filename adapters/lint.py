"""Look for mistakes that are legal: the epoch runs, but not as anybody wants it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from torch.utils.data import IterDataPipe

from ..core import Origin
from ..core.errors import LintWarning
from ..core.memory import usable_memory
from ..datapipes.iter import BatchPatches, Flush, LazyPatches, OpenVolume, Realize, SpatialPipe
from ..graph import (
    NoCut,
    Pipe,
    Rewritten,
    chained_name,
    describe,
    origin_of,
    parents_of,
    traits_of,
    walk,
)
from ..graph.served import split_of
from .adapter import Adapter
from .scattered import scattered

# The model and the rest of the loader want memory too.
_PREFETCH_PART = 4
_CACHES = ("in_memory_cache", "on_disk_cache", "end_caching")


@dataclass(frozen=True)
class Mistake:
    """One mistake in a graph."""

    name: str
    """What ``Lint(ignore=...)`` calls it."""
    what: str
    """What happens because of it, in one sentence."""
    do: str
    """How to mend it."""
    origin: Origin | None
    """Where the user wrote the pipe."""

    def __str__(self) -> str:
        place = f"\n  at {self.origin}" if self.origin is not None else ""
        return f"{self.name}: {self.what}{place}\n  {self.do}"


@dataclass(frozen=True)
class _Seen:
    """What lies upstream of a pipe, along one way at least, or along all."""

    classes: frozenset[str] = frozenset()
    """Chained names of what is upstream."""
    shuffled: bool = False
    """Whether every way from a source goes through a shuffle."""
    shuffled_patches: bool = False
    """Whether patches, once they were cut, were shuffled or interleaved."""
    patches: LazyPatches | None = None
    """The last pipe that cut patches."""
    voxels: bool = False
    """Whether items hold voxels by now."""
    opened: bool = False
    """Whether volumes were opened."""
    grouped: bool = False
    """Whether items are batches."""
    draws: bool = False
    """Whether something was drawn at random for the items."""


class Lint(Adapter):
    """Warn of mistakes in a graph, each by name, with the fix and the line; changes nothing.

    ==================  ==================================================================
    name                what is wrong
    ==================  ==================================================================
    unshuffled-shards   workers share items out that were not shuffled before
    shards-of-batches   workers share batches out: their number decides what is in one
    needless-sharding   a chain that can be split is divided by hand
    shuffled-batches    batches are shuffled, not what is in them
    shuffled-voxels     a shuffle buffers patches of voxels instead of descriptions
    one-volume-batches  the patches of a batch come from the same volume
    small-shuffle       a shuffle holds fewer items than one volume gives
    frozen-draws        a cache keeps what was drawn at random: every epoch is the same
    twice-interpolated  a spatial pipe comes after voxels were made
    copied-batches      torch's ``batch`` gathers lazy patches, which ``batch_patches`` fills
    endless             ``cycle()`` without a count: no epoch ends
    repeated-draws      ``repeat()`` brings the same patches with the same draws again
    early-device        samples go to a device one by one, before they are batched
    large-prefetch      ``prefetch()`` may hold more than a quarter of the memory
    not-split           the graph cannot be split, so workers run all of it
    scattered-chunks    patches are shuffled over more volumes than memory keeps chunks of
    planned-functions   the graph can be split, but a function runs on the wrong side of it
    no-sharding         it cannot, and nothing divides it: every worker or rank has all items
    ==================  ==================================================================

    Parameters
    ----------
    ignore
        Names that are no mistakes here.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import from_cases
    >>> chain = from_cases([{"image": [[[0.0]]]}]).open_volume().lazy_patch(1, samples_per_volume=8)
    >>> [mistake.name for mistake in Lint().mistakes(chain.batch_patches(4))]
    ['one-volume-batches']
    """

    def __init__(self, *, ignore: Collection[str] = ()) -> None:
        unknown = sorted(set(ignore) - set(_CHECKS))
        if isinstance(ignore, str) or unknown:
            msg = f"ignore takes names out of {sorted(_CHECKS)}, got {ignore!r}"
            raise ValueError(msg)
        self.ignore = frozenset(ignore)

    def mistakes(self, pipe: Pipe) -> list[Mistake]:
        """Return what is wrong with a graph, sources first."""
        found = []
        seen: dict[int, _Seen] = {}
        splits = not isinstance(split_of(pipe), NoCut)
        for here in walk(pipe):
            before = _joined([seen[id(p)] for p in parents_of(here)])
            for name, check in _CHECKS.items():
                told = None if name in self.ignore else check(here, before, splits)
                if told is not None:
                    found.append(Mistake(name, *told, origin_of(here)))
            seen[id(here)] = _after(here, before)
        again = None if "scattered-chunks" in self.ignore else scattered(pipe)
        if again is not None:
            shuffle, what, do = again
            found.append(Mistake("scattered-chunks", what, do, origin_of(shuffle)))
        if "planned-functions" not in self.ignore:
            found += _planned_functions(pipe, seen)
        refusal = split_of(pipe)
        if isinstance(refusal, NoCut) and "not-split" not in self.ignore:
            what = f"the graph cannot be split: {refusal.reason}"
            found.append(Mistake("not-split", what, _SPLIT, origin_of(pipe)))
        divided = any(traits_of(here).shards or traits_of(here).deals for here in walk(pipe))
        if isinstance(refusal, NoCut) and not divided and "no-sharding" not in self.ignore:
            found.append(Mistake("no-sharding", _UNDIVIDED, _DIVIDE, origin_of(pipe)))
        return found

    def rewrite(self, pipe: Pipe) -> Rewritten:
        """Return the very same graph, after a :class:`LintWarning` for each mistake."""
        for mistake in self.mistakes(pipe):
            warnings.warn(str(mistake), LintWarning, stacklevel=4)
        return Rewritten(pipe, pipe)


_SPLIT = (
    "Workers then need torch and the whole chain, and the number of workers decides what is in a "
    "batch: move what it names before open_volume() or after batch_patches()."
)


_UNDIVIDED = "only one worker can make items of this graph, and every rank would see all of them"
_DIVIDE = "Put .sharding_filter() after .shuffle(), or make it a graph that can be split."


def _planned_functions(sink: Pipe, seen: dict[int, _Seen]) -> list[Mistake]:
    """Return the functions that no worker runs, though they may do what workers are for."""
    split = split_of(sink)
    if isinstance(split, NoCut):
        return []
    found = []
    volumes = any(traits_of(pipe).opens for pipe in walk(sink))
    for pipe in walk(split.planner):
        traits = traits_of(pipe)
        # Before volumes are opened, and to choose among them, it has names and headers to look at.
        may_read = traits.per_item and seen[id(pipe)].opened if volumes else True
        if traits.opaque and may_read:
            what = f"{describe(pipe)} runs in the process of the loader, and in no worker"
            found.append(Mistake("planned-functions", what, _TO_WORKERS, origin_of(pipe)))
    return found


_TO_WORKERS = (
    "Put what shuffles, filters or gathers for the first time before it, so that it runs with the "
    "batch; or put .sharding_filter() before it: then each worker runs the chain on its share."
)


def _joined(parents: list[_Seen]) -> _Seen:
    if len(parents) == 1:
        return parents[0]
    return _Seen(
        frozenset[str]().union(*(p.classes for p in parents)),
        bool(parents) and all(p.shuffled for p in parents),
        any(p.shuffled_patches for p in parents) or len(parents) > 1,
        next((p.patches for p in parents if p.patches is not None), None),
        any(p.voxels for p in parents),
        any(p.opened for p in parents),
        any(p.grouped for p in parents),
        any(p.draws for p in parents),
    )


def _after(pipe: Pipe, before: _Seen) -> _Seen:
    cuts = isinstance(pipe, LazyPatches)
    shuffles = _shuffles(pipe)
    mixes = shuffles or chained_name(pipe) in ("interleave", "in_batch_shuffle")
    return _Seen(
        before.classes | {chained_name(pipe)},
        before.shuffled or shuffles,
        not cuts and (before.shuffled_patches or mixes),
        pipe if isinstance(pipe, LazyPatches) else before.patches,
        before.voxels or isinstance(pipe, (Realize, Flush, BatchPatches)),
        before.opened or isinstance(pipe, OpenVolume) or traits_of(pipe).opens,
        before.grouped or traits_of(pipe).group > 0,
        before.draws or cuts or isinstance(pipe, SpatialPipe),
    )


def _shuffles(pipe: Any) -> bool:
    return isinstance(pipe, IterDataPipe) and hasattr(type(pipe), "set_shuffle")


_Told = tuple[str, str] | None
_Check = Callable[[Any, _Seen, bool], _Told]


def _unshuffled_shards(pipe: Any, before: _Seen, splits: bool) -> _Told:
    if not traits_of(pipe).shards or before.shuffled:
        return None
    what = "each worker and rank sees the same share of the items in every epoch"
    return what, "Put .shuffle() before .sharding_filter()."


def _shards_of_batches(pipe: Any, before: _Seen, splits: bool) -> _Told:
    if not traits_of(pipe).shards or not before.grouped:
        return None
    what = "whole batches are shared out after every worker made all of them"
    return what, "Put .sharding_filter() before the pipe that makes batches."


def _needless_sharding(pipe: Any, before: _Seen, splits: bool) -> _Told:
    if not traits_of(pipe).shards or not splits:
        return None
    what = "this chain is planned in one place, and workers take batches from there"
    return what, "Leave .sharding_filter() out: batches then do not depend on the workers."


def _shuffled_batches(pipe: Any, before: _Seen, splits: bool) -> _Told:
    if not _shuffles(pipe) or not before.grouped:
        return None
    what = f"{describe(pipe)} changes the order of batches, not what is in them"
    return what, "Put .shuffle() before the pipe that makes batches."


def _shuffled_voxels(pipe: Any, before: _Seen, splits: bool) -> _Told:
    if not _shuffles(pipe) or not before.voxels or before.grouped:
        return None
    what = f"{describe(pipe)} keeps up to {getattr(pipe, 'buffer_size', 'all')} patches of voxels"
    return what, "Put .shuffle() before .realize(): descriptions cost nothing to keep."


def _one_volume_batches(pipe: Any, before: _Seen, splits: bool) -> _Told:
    if not traits_of(pipe).group or before.patches is None or before.shuffled_patches:
        return None
    count = _patches_a_volume(before)
    if count == 1:
        return None
    what = f"{count or 'all'} patches of a volume follow each other into the same batches"
    return what, "Put .shuffle() after .lazy_patch(), or .interleave() for fewer reads."


def _patches_a_volume(before: _Seen) -> int:
    """Return how many patches a volume gives; 0 if that depends on its shape, 1 without any."""
    if before.patches is None:
        return 1
    return 0 if before.patches.sampling == "grid" else before.patches.samples_per_volume


def _small_shuffle(pipe: Any, before: _Seen, splits: bool) -> _Told:
    size = getattr(pipe, "buffer_size", None)
    count = _patches_a_volume(before)
    if not _shuffles(pipe) or before.grouped or not size or size > max(1, count):
        return None
    what = f"a buffer of {size} patches never holds more than one volume's {count}"
    return what, "Give .shuffle() a larger buffer_size: what it keeps are descriptions."


def _frozen_draws(pipe: Any, before: _Seen, splits: bool) -> _Told:
    if chained_name(pipe) not in _CACHES or not before.draws:
        return None
    what = f"{describe(pipe)} keeps patches and augmentations of the first epoch for all others"
    return what, "Put the cache before .lazy_patch() and before whatever draws."


def _twice_interpolated(pipe: Any, before: _Seen, splits: bool) -> _Told:
    if not isinstance(pipe, SpatialPipe) or not before.voxels:
        return None
    what = f"{describe(pipe)} interpolates voxels that were interpolated before"
    return what, "Put it before .flush() or .realize(): then all moves are made at once."


def _copied_batches(pipe: Any, before: _Seen, splits: bool) -> _Told:
    if chained_name(pipe) != "batch" or not before.opened or before.grouped:
        return None
    what = "torch's batch() gathers patches in a list, and collate() copies their voxels"
    return what, "Use .batch_patches(n): voxels are interpolated straight into the batch."


def _endless(pipe: Any, before: _Seen, splits: bool) -> _Told:
    if chained_name(pipe) != "cycle" or getattr(pipe, "count", 1) is not None:
        return None
    what = "cycle() without a count goes on for ever: no epoch ends, and len() is unknown"
    return what, "Give it a count, or leave it out: each iter() of the loader is the next epoch."


def _repeated_draws(pipe: Any, before: _Seen, splits: bool) -> _Told:
    if chained_name(pipe) not in ("repeat", "cycle") or not before.draws:
        return None
    what = f"{describe(pipe)} gives each patch again as it is: draws belong to the epoch"
    return what, "Leave it out and iterate more epochs, or give samples_per_volume= more."


def _early_device(pipe: Any, before: _Seen, splits: bool) -> _Told:
    if chained_name(pipe) not in ("to_device", "pin_memory") or before.grouped:
        return None
    if before.patches is None:
        return None
    what = f"{describe(pipe)} handles samples one by one, and a batch of them is copied again"
    return what, "Put it after .batch_patches(n), or give the adapter Runtime(device=...)."


def _large_prefetch(pipe: Any, before: _Seen, splits: bool) -> _Told:
    size, memory = getattr(pipe, "buffer_bytes", 0), usable_memory()
    if chained_name(pipe) != "prefetch" or not memory or size <= memory // _PREFETCH_PART:
        return None
    what = f"up to {size / 2**30:.3g} GiB of {memory / 2**30:.3g} may wait to be taken"
    return what, "Give prefetch(buffer_bytes=...) less: two batches keep a loop busy."


_CHECKS: dict[str, _Check] = {
    "unshuffled-shards": _unshuffled_shards,
    "shards-of-batches": _shards_of_batches,
    "needless-sharding": _needless_sharding,
    "shuffled-batches": _shuffled_batches,
    "shuffled-voxels": _shuffled_voxels,
    "one-volume-batches": _one_volume_batches,
    "small-shuffle": _small_shuffle,
    "frozen-draws": _frozen_draws,
    "twice-interpolated": _twice_interpolated,
    "copied-batches": _copied_batches,
    "endless": _endless,
    "repeated-draws": _repeated_draws,
    "early-device": _early_device,
    "large-prefetch": _large_prefetch,
    "scattered-chunks": lambda pipe, before, splits: None,
    "planned-functions": lambda pipe, before, splits: None,
    "no-sharding": lambda pipe, before, splits: None,
    "not-split": lambda pipe, before, splits: None,
}
