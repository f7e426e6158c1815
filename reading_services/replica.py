"""A whole graph on one worker's share of the items, as torchdata runs graphs."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from torch.utils.data.datapipes.iter import ShardingFilter

from ..core import Stream
from ..core.call_site import shorten
from ..core.errors import LOCATABLE, GraphError, add_location
from ..core.validate import validate_int
from ..datapipes import DataPipe
from ..datapipes.datapipe import length
from ..datapipes.epoch import OwnGenerators, count_seeded, set_epoch, starts_again
from ..datapipes.foreign import LEVELS, RANKS, WORKERS, division_levels
from ..graph import (
    Pipe,
    Traits,
    clone,
    describe,
    error_location,
    is_pipe,
    origin_of,
    parents_of,
    walk,
)
from .pipe_runner import as_raised, seeded_globals, written_last
from .transport.messages import END_OF_ITEMS, Feed

MAX_SEED = 2**64


class SeedGenerator:
    """Two sequences of seeds from one seed: shared by all processes, and of this worker alone.

    Every seed is a function of the first seed, the worker's path and the number of earlier draws.
    The numbers differ from those of torchdata's generator of this name.

    Parameters
    ----------
    seed
        0 <= seed < 2**64; None to give it later.

    Examples
    --------
    >>> seeds = SeedGenerator(7)
    >>> first, second = seeds.spawn(0), seeds.spawn(1)
    >>> first.generate_shared_seed() == second.generate_shared_seed()
    True
    >>> first.generate_seed() == second.generate_seed()
    False
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seed: int | None = None
        self._worker: tuple[int, ...] = ()
        self._shared_count = self._own = 0
        if seed is not None:
            self.seed(seed)

    def seed(self, seed: int) -> SeedGenerator:
        """Restart from ``seed``; the worker stays the same."""
        self._seed = validate_int("seed", seed, least=0, below=MAX_SEED)
        self._shared_count = self._own = 0
        return self

    def generate_shared_seed(self) -> int:
        """Return the next seed that all workers and ranks share, below 2**63."""
        self._shared_count += 1
        return self._draw((self._shared_count,), "shared")

    def generate_seed(self) -> int:
        """Return the next seed of this worker alone, below 2**63."""
        self._own += 1
        return self._draw((*self._worker, self._own), "own")

    def spawn(self, worker_id: int, inplace: bool = False) -> SeedGenerator:
        """Return the generator of a worker, which is this object with ``inplace``.

        Raises
        ------
        ValueError
            If ``worker_id`` is negative.
        """
        worker_id = validate_int("worker_id", worker_id, least=0)
        generator = self if inplace else copy.copy(self)
        generator._worker = (*self._worker, worker_id)
        generator._own = 0
        return generator

    def _draw(self, identity: tuple[int, ...], name: str) -> int:
        if self._seed is None:
            raise ValueError("a SeedGenerator without a seed has no numbers; call seed(n) first")
        return Stream(self._seed, 0, identity, f"seed generator, {name}").integer()

    def __repr__(self) -> str:
        return f"SeedGenerator(seed={self._seed}, worker={self._worker})"


class DispatchedItems(DataPipe):
    """Yields the items dealt to this worker, in place of the pipes that make them."""

    traits: ClassVar[Traits] = Traits()

    def __init__(self, point: Pipe) -> None:
        super().__init__()
        self.stands_for = count_seeded(point)
        self.source = describe(point)
        self.source_origin = origin_of(point)
        self.feed: Feed | None = None
        self._has_begun = False

    def describe(self) -> str:
        """Return the source of the items."""
        return f"items of {self.source}"

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, in which each item comes once."""
        self._has_begun = False

    def __iter__(self) -> Iterator[Any]:
        assert self.feed is not None
        if self._has_begun:
            raise GraphError(
                f"a pipe after {self.source} begins a second pass in one epoch, but its items are "
                "dealt out once",
                do="Put cycle(), repeat() and the like before it.",
            ).at(self.source_origin)
        self._has_begun = True
        while (item := self.feed()) is not END_OF_ITEMS:
            yield item

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "feed": None, "_has_begun": False}


@dataclass(frozen=True)
class WorkerInfo:
    """The worker that prepares its graph, and the number of workers."""

    num_workers: int
    """Workers of this process's loader."""
    worker_id: int
    """Index of this worker, from 0."""


InitFunction = Callable[[Any, WorkerInfo], Any]
ResetFunction = Callable[[Any, WorkerInfo, SeedGenerator], Any]


@dataclass(frozen=True)
class Hooks:
    """The user's functions that each worker calls."""

    init: InitFunction | None = None  # called once per worker, after its share was chosen
    reset: ResetFunction | None = None  # called before every epoch

    def __post_init__(self) -> None:
        functions: Any = {"worker_init_fn": self.init, "worker_reset_fn": self.reset}
        for name, function in functions.items():
            if function is not None and not callable(function):
                msg = f"{name} is a function that returns the worker's datapipe, or None"
                raise TypeError(f"{msg}; got {shorten(function)}")

    def __bool__(self) -> bool:
        return self.init is not None or self.reset is not None

    def names(self) -> str:
        """Return the functions with their arguments' names, for messages."""
        pairs = [("worker_init_fn", self.init), ("worker_reset_fn", self.reset)]
        return " and ".join(f"{name}={shorten(f)}" for name, f in pairs if f is not None)


NO_HOOKS = Hooks()


def _call(name: str, function: Any, graph: Pipe, info: WorkerInfo, *seeds: Any) -> Pipe:
    """Return the output of a user's function on the graph; the graph without a function."""
    if function is None:
        return graph
    try:
        output: Any = function(graph, info, *seeds)
    except Exception as error:
        error = add_location(error)
        error.add_note(f"in {name}={shorten(function)} of worker {info.worker_id}")
        raise error
    if not is_pipe(output):
        raise GraphError(
            f"{name}={shorten(function)} returned {shorten(output)}, and not the datapipe that the "
            "worker is to run",
            do="Return the datapipe that it was given, or another one.",
        )
    pipe: Pipe = output
    return pipe


# Shares of the sharding filters of a graph: of a rank, and within it of a worker.
#
# torch's own ``apply_sharding`` knows one level and pickles every pipe that it visits. Its time
# doubles with each diamond in the graph. Here each pipe is visited once.


def apply_shares(
    graph: Pipe, *, ranks: int = 1, rank: int = 0, workers: int = 1, worker: int = 0
) -> None:
    """Make ``graph`` yield the items of one worker of one rank.

    Item *i* goes to worker ``i % workers`` of rank ``i // workers % ranks``. A filter with a level
    divides at that level only. Dealt items are divided among ranks only.
    """
    refuse_twice(graph)
    after: set[int] = set()
    for pipe in walk(graph):
        if isinstance(pipe, DispatchedItems) or not after.isdisjoint(map(id, parents_of(pipe))):
            after.add(id(pipe))
        # Items that were dealt to this worker are its share.
        among, own_place = (1, 0) if id(pipe) in after else (workers, worker)
        shares = {RANKS: (ranks, rank), WORKERS: (among, own_place)}
        own: Any = getattr(pipe, "apply_sharding", None)
        if own is None:
            continue
        if isinstance(pipe, ShardingFilter):
            # torch stores the share in a dict, which copies of the pipe have in common.
            pipe.groups = dict(pipe.groups)
        if len(inspect.signature(own).parameters) < 3:  # it knows no levels
            own(ranks * among, rank * among + own_place)
            continue
        for level in LEVELS:
            if level in division_levels(pipe):
                own(*shares[level], level)


def lengths_in_shares(graph: Pipe, *, ranks: int, workers: int) -> list[int]:
    """Return the number of items of each rank; TypeError if it is unknown."""
    lengths = []
    for rank in range(ranks):
        shares = [clone(graph) for _ in range(workers)]
        for worker, share in enumerate(shares):
            apply_shares(share, ranks=ranks, rank=rank, workers=workers, worker=worker)
        lengths.append(sum(map(length, shares)))
    return lengths


def levels(graph: Pipe) -> set[Any]:
    """Return the levels at which the pipes of a graph divide."""
    return {level for pipe in walk(graph) for level in division_levels(pipe)}


def refuse_twice(graph: Pipe) -> None:
    """Raise ``GraphError`` if a branch is divided twice at one level: a share of a share."""
    above: dict[int, dict[Any, Pipe]] = {}
    for pipe in walk(graph):
        by_level: dict[Any, Pipe] = {}
        for parent in parents_of(pipe):
            by_level |= above[id(parent)]
        for level in division_levels(pipe):
            if level in by_level:
                raise GraphError(
                    f"{describe(pipe)} divides again the items of {describe(by_level[level])}",
                    do="Leave one of them out, or give one SHARDING_PRIORITIES.DISTRIBUTED and the "
                    "other SHARDING_PRIORITIES.MULTIPROCESSING.",
                )
            by_level = {**by_level, level: pipe}
        above[id(pipe)] = by_level


@dataclass(frozen=True)
class ShareOfItems:
    """The share of one worker of one rank in the items of a whole graph."""

    worker: int = 0
    workers: int = 1
    rank: int = 0
    ranks: int = 1

    @property
    def number(self) -> int:
        """Index of the share among all shares."""
        return self.rank * self.workers + self.worker

    @property
    def count(self) -> int:
        """Number of shares."""
        return self.ranks * self.workers


class Replica:
    """A whole graph that cannot be cut, run on this worker's share of the items."""

    def __init__(self, graph: Any, share: ShareOfItems, hooks: Hooks) -> None:
        self.graph = graph
        self._pipes = list(walk(graph))
        self.last = written_last(self._pipes)
        self.share = share
        self.hooks = hooks
        self._is_initialized = False
        self._run: tuple[int, int] | None = None
        self._items: Iterator[Any] | None = None
        self._own: OwnGenerators | None = None

    def feed(self, feed: Feed, worker: int = 0) -> None:
        """Read the items for worker number ``worker`` from ``feed``."""
        self.share = replace(self.share, worker=worker)
        for pipe in walk(self.graph):
            if isinstance(pipe, DispatchedItems):
                pipe.feed = feed

    def renew(self, fresh: Replica) -> Replica:
        """Return this replica for the next epoch, with the functions of a ``fresh`` one.

        Pipes keep their items. After a ``worker_init_fn`` the functions stay, too.
        """
        self.leave()
        pairs = zip(self._pipes, fresh._pipes, strict=True) if self.hooks.init is None else ()
        for pipe, other in pairs:
            for name, value in vars(other).items():
                owner = getattr(value, "__self__", value)  # for a method: its object
                if callable(value) and not is_pipe(owner):
                    vars(pipe)[name] = value
        return self

    def leave(self) -> None:
        """End the epoch at its current item; the next one begins at its first item."""
        self._run = self._items = None

    def run(self, index: int, seed: int, epoch: int) -> Any:
        """Return this worker's next item; StopIteration after the last, any number of times."""
        # Random numbers depend on the share, as items of a share have no global numbers.
        key = (self.share.count, self.share.number, index)
        if self._run != (seed, epoch) or self._own is None:
            self._run = (seed, epoch)
            self._own = OwnGenerators(walk(self.graph))
            self._begin(seed, epoch)
        if self._items is None:
            raise StopIteration
        item = self._next(key, seed, epoch)
        may_repeat = not index and self.hooks.reset is None and starts_again(self.graph)
        if self._own.repeats(may_repeat=may_repeat):
            self._begin(seed, epoch)
            item = self._next(key, seed, epoch)
        return item

    def _begin(self, seed: int, epoch: int) -> None:
        assert self._own is not None
        place = (self.share.count, self.share.number)
        stream = Stream(seed, epoch, place, "worker functions")
        with seeded_globals(stream.integer(), self._own.generators):
            try:
                self._items = self._start(seed, epoch)
            except StopIteration as error:  # else it would look like the end of the share
                raise add_location(error, error_location(error))  # noqa: B904

    def _next(self, key: tuple[int, int, int], seed: int, epoch: int) -> Any:
        assert self._items is not None
        assert self._own is not None
        index = key[2]
        stream = Stream(seed, epoch, key, "user functions")
        try:
            with seeded_globals(stream.integer(), self._own.generators):
                return next(self._items)
        except StopIteration:
            self._items = None
            raise
        except LOCATABLE as error:
            at, of = error_location(error), f" of share {self.share.number}"
            item = f"item {index}{of if self.share.count > 1 else ''}"
            raise add_location(as_raised(error), at, item=item)  # noqa: B904  the very same

    def _start(self, seed: int, epoch: int) -> Iterator[Any]:
        info = WorkerInfo(self.share.workers, self.share.worker)
        if not self._is_initialized:
            self._is_initialized = True
            apply_shares(self.graph, **vars(self.share))
            self.graph = _call("worker_init_fn", self.hooks.init, self.graph, info)
        set_epoch(self.graph, seed, epoch)
        seeds = SeedGenerator(Stream(seed, epoch, (), "worker seeds").integer())
        own = seeds.spawn(self.share.number)
        return iter(_call("worker_reset_fn", self.hooks.reset, self.graph, info, own))
