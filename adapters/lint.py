"""The adapter that looks for legal mistakes: the epoch runs, but not as anybody wants it."""

from __future__ import annotations

import dis
import functools
import random
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeAlias

from torch.utils.data import IterDataPipe

from ..core import CallSite
from ..core.errors import LintWarning
from ..datapipes.cost import passes_of
from ..datapipes.datapipe import draws
from ..datapipes.epoch import UNSEEN_HINT, Unseen, has_place, held_objects, is_library
from ..datapipes.iter import BatchPatches, Flush, PatchSampler, Realize, SpatialPipe
from ..first_use import consult, extensions
from ..graph import (
    Cut,
    NoCut,
    Pipe,
    RewriteResult,
    chained_name,
    declares_traits,
    describe,
    origin_of,
    parents_of,
    traits_of,
    walk,
)
from ..graph.cut import split_of
from .adapter import Adapter
from .profile import without_timers

# Bytes that a disk of 2 GB/s reads in half a second: fewer are not reported.
MUCH_BYTES = 10**9
_CACHES = ("in_memory_cache", "on_disk_cache", "end_caching")
# Names of mistakes at a pipe; that of a graph and its loader.
_OF_PIPES = SHARDS, _BATCHES, _FROZEN_VALUE, _REPEATED_DRAWS, _TWICE = (
    *("unshuffled-shards", "one-volume-batches"),
    *("frozen-draws", "repeated-draws", "twice-interpolated"),
)
_IDLE = "idle-workers"


@dataclass(frozen=True)
class Mistake:
    """One mistake in a graph."""

    name: str
    """Its name in ``Lint(ignore=...)``."""
    message: str
    """Its effect, in one sentence."""
    do: str
    """The fix."""
    origin: CallSite | None
    """Where the user wrote the pipe."""

    def __str__(self) -> str:
        place = f"\n  at {self.origin}" if self.origin is not None else ""
        return f"{self.name}: {self.message}{place}\n  {self.do}"


@dataclass(frozen=True)
class Upstream:
    """Pipes upstream of a pipe, along one way at least, or along all."""

    is_shuffled: bool = False  # whether every way from a source goes through a shuffle
    shuffled_patches: bool = False
    """Whether patches, once they were cut, were shuffled or interleaved."""
    patches: PatchSampler | None = None  # the last pipe that cut patches
    voxels: bool = False  # whether items hold voxels by now
    draws: bool = False  # whether something was drawn at random for the items

    @classmethod
    def of(cls, parents: list[Upstream]) -> Upstream:
        """Return the upstream of a pipe with these parents."""
        if len(parents) == 1:
            return parents[0]
        return cls(
            is_shuffled=bool(parents) and all(p.is_shuffled for p in parents),
            shuffled_patches=any(p.shuffled_patches for p in parents) or len(parents) > 1,
            patches=next((p.patches for p in parents if p.patches is not None), None),
            voxels=any(p.voxels for p in parents),
            draws=any(p.draws for p in parents),
        )

    def after(self, pipe: Pipe) -> Upstream:
        """Return the upstream of the next pipe."""
        shuffles = isinstance(pipe, IterDataPipe) and hasattr(type(pipe), "set_shuffle")
        mixes = shuffles or chained_name(pipe) in ("interleave", "in_batch_shuffle")
        cuts = isinstance(pipe, PatchSampler)
        return Upstream(
            is_shuffled=self.is_shuffled or shuffles,
            shuffled_patches=not cuts and (self.shuffled_patches or mixes),
            patches=pipe if isinstance(pipe, PatchSampler) else self.patches,
            voxels=self.voxels or isinstance(pipe, (Realize, Flush, BatchPatches)),
            draws=self.draws or draws(pipe),
        )


Places: TypeAlias = "tuple[tuple[Pipe, str, str], ...]"
"""Pipes with their effect and the fix."""


class Lint(Adapter):
    """Warn of mistakes in a graph, each by name, with the fix and the line, without any change.

    ==================  ==================================================================
    name                mistake
    ==================  ==================================================================
    unshuffled-shards   workers share items out that were not shuffled before
    one-volume-batches  the patches of a batch come from the same volume
    frozen-draws        a cache keeps random draws: every epoch is the same
    repeated-draws      ``repeat()`` brings the same patches with the same draws again
    twice-interpolated  a spatial pipe comes after voxels were made
    planned-functions   the graph can be split, but a function runs on the wrong side of it
    own-state           an object in a function has state of its own that no seed sets
    whole-volumes       statistics, boxes or masks take a pass over volumes in remote stores
    idle-workers        the loader has workers, and no pipe is left for them: all of them plan
    ==================  ==================================================================

    Each costs quality or speed and raises no error. Packages add mistakes by entry points
    ``voxpipe.lint_rules``: a name, and a function of the last pipe. The function yields the pipe,
    the effect and the fix of each mistake.
    Give it after adapters of your own: it checks the graph that they return.

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
        unknown = sorted(set(ignore) - set(NAMES))
        if isinstance(ignore, str) or unknown:
            raise ValueError(f"ignore takes names out of {NAMES}, got {ignore!r}")
        self.ignore = frozenset(ignore)

    def mistakes(self, pipe: Pipe) -> list[Mistake]:
        """Return the mistakes of a graph: pipe by pipe, sources first, then as a whole."""
        result = []
        split = split_of(pipe)
        upstream: dict[int, Upstream] = {}
        for one in walk(pipe):
            before = Upstream.of([upstream[id(parent)] for parent in parents_of(one)])
            for name, what, do in _mistakes_at(one, before):
                if name not in self.ignore:
                    result.append(Mistake(name, what, do, origin_of(one)))
            upstream[id(one)] = before.after(one)
        for name, look in _OF_GRAPHS.items():
            result += () if name in self.ignore else _mistakes(name, look(pipe, split))
        for name, point in extensions("lint_rules").items():
            if name not in self.ignore:
                result += consult(point, pipe, functools.partial(_mistakes, name))
        return result

    def mistake_of_workers(self, pipe: Pipe, workers: int) -> Mistake | None:
        """Return the mistake of a graph under so many workers, which only a loader knows."""
        split = split_of(pipe)
        if not workers or _IDLE in self.ignore or not isinstance(split, Cut) or split.realizing:
            return None
        what = f"num_workers={workers}, but every pipe plans, so the loader's process runs them all"
        do = "End the chain with .batch_patches() or .batch(), which workers run; or use none."
        if _planned_functions(pipe, split):
            do = "Put .sharding_filter() before the pipes that must run in workers; or use none."
        return Mistake(_IDLE, what, do, origin_of(pipe))

    def rewrite(self, pipe: Pipe) -> RewriteResult:
        """Return the very same graph, after a :class:`LintWarning` for each mistake."""
        for mistake in self.mistakes(pipe):
            warnings.warn(str(mistake), LintWarning, stacklevel=4)
        return RewriteResult(pipe, pipe)


def _mistakes(name: str, places: Places = ()) -> list[Mistake]:
    return [Mistake(name, what, do, origin_of(at)) for at, what, do in places]


def _mistakes_at(pipe: Any, before: Upstream) -> Iterator[tuple[str, str, str]]:
    traits, form, patches = traits_of(pipe), chained_name(pipe), before.patches
    if traits.shards and not before.is_shuffled:
        what = "each worker and rank sees the same share of the items in every epoch"
        yield SHARDS, what, "Put .shuffle() before .sharding_filter()."
    if traits.group and patches is not None and not before.shuffled_patches:
        # On a grid their number depends on the shape of the volume.
        count: Any = "all" if patches.sampling == "grid" else patches.samples_per_volume
        if count != 1:
            what = f"{count} patches of a volume follow each other into the same batches"
            do = "Put .shuffle() after .lazy_patch(), or .interleave() for fewer reads."
            yield _BATCHES, what, do
    if form in _CACHES and before.draws:
        what = f"{describe(pipe)} keeps patches and augmentations of the first epoch for all others"
        yield _FROZEN_VALUE, what, "Put the cache before .lazy_patch() and before whatever draws."
    if form in ("repeat", "cycle") and before.draws:
        what = f"{describe(pipe)} gives each patch again as it is: draws belong to the epoch"
        do = "Leave it out and iterate more epochs, or give samples_per_volume= more."
        yield _REPEATED_DRAWS, what, do
    if isinstance(pipe, SpatialPipe) and before.voxels:
        what = f"{describe(pipe)} interpolates voxels that were interpolated before"
        do = "Put it before .flush() or .realize(): then all moves are made at once."
        yield _TWICE, what, do


def _planned_functions(sink: Pipe, split: Cut | NoCut) -> Places:
    """Find functions and own pipes that no worker runs, though they may do a worker's work."""
    if isinstance(split, NoCut):
        return ()
    open_ids: set[int] = set()
    places = []
    volumes = any(traits_of(pipe).opens for pipe in walk(sink))
    for pipe in walk(split.planner):
        traits = traits_of(pipe)
        behind = any(id(parent) in open_ids for parent in parents_of(pipe))
        mute = bool(parents_of(pipe)) and not (declares_traits(pipe) or traits.main_process)
        works = traits.runs_user_code or mute
        # Before volumes are opened, and to choose among them, it has names and headers to look at.
        if works and (not volumes or (traits.per_item and behind)):
            what = f"{describe(pipe)} runs in the process of the loader, and in no worker"
            places.append((pipe, what, _TO_WORKERS))
        if behind or traits.opens:
            open_ids.add(id(pipe))
    return tuple(places)


_TO_WORKERS = (
    "Put what shuffles, filters or gathers for the first time before it, so that it runs with the "
    "batch; or put .sharding_filter() before it: then each worker runs the chain on its share."
)


def _whole_volumes(sink: Pipe, split: Cut | NoCut) -> Places:
    return tuple(
        (
            each.pipe,
            f"before the first patch of each case it reads all of {each.key!r}: "
            f"{each.volumes} x {each.bytes_each / 1e6:.3g} MB, {each.bytes / 1e6:.3g} MB in the "
            "first epoch on this machine",
            "Write a manifest once (voxpipe index) and begin with from_manifest(), which has these "
            "numbers; or give them to the pipe. Later epochs and runs find them in the cache.",
        )
        for each in passes_of(without_timers(sink), 0, 0)
        if each.remote or each.bytes >= MUCH_BYTES
    )


def _own_state(sink: Pipe, split: Cut | NoCut) -> Places:
    """Return the pipes whose functions have state that no seed sets, as counters and iterators."""
    places = []
    for pipe in walk(sink):
        things = list(held_objects([pipe]))
        places += [(pipe, str(each), UNSEEN_HINT) for each in things if isinstance(each, Unseen)]
        kind = next((kind for kind in map(type, things) if _has_own_state(kind)), None)
        if kind is not None:
            what = f"{kind.__name__} in {describe(pipe)} has state that no seed sets: it depends "
            what += "on the number of workers, and is lost after a resume. Each worker begins an "
            what += "epoch with a copy; without workers it goes on from epoch to epoch"
            do = "Draw from np.random, torch or a generator of these: each is seeded for each item."
            places.append((pipe, what, do))
    return tuple(places)


@functools.lru_cache(maxsize=1024)
def _has_own_state(kind: type) -> bool:
    """Whether objects of a class are iterators or quasi-random engines, or count in an attribute.

    A method that counts does ``self.x += ...``.
    """
    if has_place(kind) or issubclass(kind, random.SystemRandom):
        return True
    kinds = [one for one in kind.__mro__ if not is_library(one)]
    methods = [m for one in kinds for m in vars(one).values() if isinstance(m, FunctionType)]
    for method in methods:
        steps = [*dis.get_instructions(method)] if method.__name__ != "__init__" else []
        for this, *after in zip(steps, steps[1:], steps[2:], strict=False):
            adds = this.opname == "BINARY_OP" and this.argrepr.endswith("=")
            if adds and any(step.opname == "STORE_ATTR" for step in after):
                return True
    return False


_OF_GRAPHS: dict[str, Callable[[Pipe, Cut | NoCut], Places]] = {
    "planned-functions": _planned_functions,
    "own-state": _own_state,
    "whole-volumes": _whole_volumes,
}
NAMES = sorted([*_OF_PIPES, *_OF_GRAPHS, _IDLE, *extensions("lint_rules")])


def _check_shuffle_before_sharding(datapipe: Pipe) -> bool:
    """Whether every path to a ``sharding_filter`` has a ``shuffle``; torchdata's check."""
    return not Lint(ignore=set(NAMES) - {SHARDS}).mistakes(datapipe)
