"""Tell every random pipe of a graph which epoch comes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ..core import Stream
from ..graph import Pipe, Traits, describe, parents_of, readers, traits_of, walk, with_parents
from .datapipe import DataPipe


@dataclass(frozen=True)
class Numbered:
    """How many pipes of a part of a graph are told by number of an epoch."""

    sources: int
    """Sources of samples."""
    kinds: Mapping[str, int]
    """Other random pipes, by the name of their class."""


def set_epoch(graph: Pipe, seed: int, epoch: int) -> None:
    """Tell every random pipe of ``graph`` which epoch comes; the same on every worker.

    Sources of samples take (seed, epoch) and their number among the sources. Any other pipe
    with ``set_seed``, torch's or ours, takes one integer, drawn from the stream of its class and
    its place among its kind; one with ``set_epoch`` takes the epoch, as samplers of torch do.
    What stands before a cache of items, and nowhere else, is told the first epoch each time: the
    items that are kept are those of that epoch, also where an epoch is resumed elsewhere.
    """
    seen: Counter[str] = Counter()
    sources = 0
    first = _only_before_caches(graph)
    every: Any = walk(graph)  # foreign pipes have what their classes say
    for pipe in every:
        kind = type(pipe)
        absent = vars(pipe).get("stands_for")
        if isinstance(absent, Numbered):
            # Those after it have the numbers that they have in the whole graph.
            seen.update(absent.kinds)
            sources += absent.sources
        if isinstance(pipe, DataPipe) and hasattr(kind, "begin"):
            pipe.begin(seed, epoch, sources)
            sources += 1
            continue
        told = 0 if id(pipe) in first else epoch
        if hasattr(kind, "set_epoch"):
            pipe.set_epoch(told)
        if hasattr(kind, "set_seed"):
            place = seen[kind.__name__]
            seen[kind.__name__] += 1
            pipe.set_seed(Stream(seed, told, (place,), kind.__name__).integer())


def _only_before_caches(graph: Pipe) -> set[int]:
    """Return the ids of the pipes that are read by nobody but caches of items."""
    every: Any = list(walk(graph))
    if not any(_keeps_items(pipe) for pipe in every):
        return set()
    read: set[int] = set()
    waiting: list[Any] = [graph]
    while waiting:
        pipe = waiting.pop()
        if id(pipe) in read:
            continue
        read.add(id(pipe))
        if not _keeps_items(pipe):
            waiting += parents_of(pipe)
    return {id(pipe) for pipe in every} - read


def _keeps_items(pipe: Any) -> bool:
    return bool(getattr(type(pipe), "keeps_items", False))


def numbered(graph: Pipe) -> Numbered:
    """Count the pipes of a graph that are told by number of an epoch."""
    every: Any = list(walk(graph))
    begun = [isinstance(pipe, DataPipe) and hasattr(type(pipe), "begin") for pipe in every]
    others = [pipe for pipe, source in zip(every, begun, strict=True) if not source]
    kinds = Counter(type(p).__name__ for p in others if hasattr(type(p), "set_seed"))
    return Numbered(sum(begun), kinds)


def seed_again(graph: Pipe, seed: int) -> None:
    """Seed every random pipe of ``graph`` for one more pass within the same epoch.

    Sources keep their number, so identities stay those of the cases; the draws are others.
    """
    seen: dict[str, int] = {}
    every: Any = walk(graph)
    for pipe in every:
        kind = type(pipe)
        if isinstance(pipe, DataPipe) and hasattr(kind, "begin"):
            pipe.set_seed(seed)
        elif hasattr(kind, "set_seed"):
            place = seen[kind.__name__] = seen.get(kind.__name__, -1) + 1
            pipe.set_seed(Stream(seed, 0, (place,), kind.__name__).integer())


class _Rest(DataPipe):
    """A pass that was begun: the items that are left of it."""

    traits = Traits()

    def __init__(self, pipe: Pipe, passed_over: int) -> None:
        super().__init__()
        self._whole = pipe
        self._items = islice(pipe, passed_over, None)
        self.passed_over = passed_over
        """How many came before: what fails is told by its number in the whole pass."""

    def describe(self) -> str:
        return describe(self._whole)

    def __iter__(self) -> Iterator[Any]:
        yield from self._items


def items_from(planner: Pipe, start: int) -> Iterator[Any]:
    """Yield the items of a pass from the one numbered ``start`` on.

    Pipes at the end that make one item of one, and remember nothing, are not run for those before.
    What shuffles, opens or cuts is: only it knows which items those are.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> list(items_from(IterableWrapper("abc"), 1))
    ['b', 'c']
    """
    counts = readers(planner)
    tail: list[Pipe] = []
    pipe = planner
    while start and _is_passed_by(pipe) and counts[id(pipe)] <= 1:
        tail.append(pipe)
        (pipe,) = parents_of(pipe)
    sink: Pipe = _Rest(pipe, start) if tail else pipe
    for reader in reversed(tail):
        sink = with_parents(reader, [sink])
    yield from sink if tail else islice(pipe, start, None)


def _is_passed_by(pipe: Pipe) -> bool:
    traits = traits_of(pipe)
    own = isinstance(pipe, DataPipe) and not traits.watches
    return own and traits.per_item and not traits.runs_user_code and len(parents_of(pipe)) == 1
