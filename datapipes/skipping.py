"""Begin a pass of the planner in its middle: what is skipped does not go through every pipe."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from ..graph import Pipe, Traits, describe, parents_of, readers, traits_of, with_parents
from .datapipe import DataPipe


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
    return own and traits.per_item and not traits.opaque and len(parents_of(pipe)) == 1
