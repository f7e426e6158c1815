"""Which part of every batch one of several ranks makes, and how an epoch ends for all of them.

A plan is the same on every rank, so nothing has to be sent: each rank plans the whole epoch and
makes its own part of each batch. All end after the same batch, because it is the same plan. A
graph that is not split runs on every rank, on its share of the items: there the pipe that gathers
at its end is given the part of one rank, as a batch size is that of all ranks together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from ..core.errors import GraphError
from ..graph import Pipe, describe, parents_of, rebuilt, traits_of, walk
from ..graph.node import copy_pipe
from ..graph.walk import readers

KEEP, DROP, PAD, WRAP = "keep", "drop", "pad", "wrap"
UNEVEN = (DROP, PAD, WRAP)
"""What ranks may do with a last batch that is too small to be divided like the others."""


@dataclass(frozen=True)
class Part:
    """One rank's part of each batch.

    Examples
    --------
    >>> second = Part(rank=1, ranks=2, uneven="pad")
    >>> second.of((0, 1, 2, 3))
    (2, 3)
    >>> second.last([8], first=[0, 1, 2, 3], size=4)
    (8, 8, 8, 8)
    """

    rank: int = 0
    """Which rank."""
    ranks: int = 1
    """How many there are."""
    uneven: str = KEEP
    """The last batch of an epoch that does not fill it: ``"keep"`` it smaller (one process),
    ``"drop"`` it, ``"pad"`` it with its last item, ``"wrap"`` around to the epoch's first items."""

    @property
    def name(self) -> str:
        """Which rank of how many, in words."""
        return f"rank {self.rank} of {self.ranks}"

    def size(self, group: int) -> int:
        """Return the items of a batch of all ranks together; ``group`` of them are gathered."""
        if group == 1:
            return self.ranks
        if group % self.ranks:
            raise GraphError(
                f"a batch of {group} cannot be divided among {self.ranks} ranks: its size is that "
                "of all ranks together",
                do=f"Give a batch size that {self.ranks} divides, or start other ranks.",
            )
        return group

    def of(self, items: Sequence[Any]) -> tuple[Any, ...]:
        """Return this rank's items of a batch."""
        if self.ranks == 1:
            return tuple(items)
        count = len(items) // self.ranks
        return tuple(items[self.rank * count : (self.rank + 1) * count])

    def last(self, items: Sequence[Any], first: Sequence[Any], size: int) -> tuple[Any, ...]:
        """Return the last batch of all ranks; empty if there is none."""
        if not items or self.uneven == DROP:
            return ()
        if self.uneven == PAD:
            return (*items, *[items[-1]] * (size - len(items)))
        if self.uneven == WRAP:
            return (*items, *islice(cycle(first), size - len(items)))
        return tuple(items)

    def __str__(self) -> str:
        ends = {
            DROP: "left out",
            PAD: "filled up with its last item",
            WRAP: "filled up from the first",
        }
        return (
            f"{self.name}: its part of every batch of all ranks; a last one "
            f"that is too small is {ends.get(self.uneven, 'smaller')}"
        )


WHOLE = Part()
"""All of every batch: one process."""


def gathered_by(sink: Pipe) -> Pipe | None:
    """Return the pipe that makes the batches which a graph yields; None if it yields items.

    Behind it every pipe takes its items one by one.
    """
    counts = readers(sink)
    pipe = sink
    while True:
        traits, parents = traits_of(pipe), parents_of(pipe)
        if traits.group:
            return pipe
        if (
            len(parents) != 1
            or not (traits.per_item or traits.main_process)
            or counts[id(pipe)] > 1
        ):
            return None
        pipe = parents[0]


def with_own_batches(sink: Pipe, part: Part) -> Pipe:
    """Return a whole graph whose batches are one rank's part of those that were asked for."""
    gatherer = gathered_by(sink)
    if gatherer is None or traits_of(gatherer).group == 1:
        return sink
    own: Any = copy_pipe(gatherer)
    own.batch_size = part.size(traits_of(gatherer).group) // part.ranks
    return rebuilt(sink, lambda old, here: own if old is gatherer else here)


def explained(sink: Pipe, part: Part, *, whole: bool) -> str:
    """Return what one rank makes of a graph, in words."""
    gatherer = gathered_by(sink)
    group = traits_of(gatherer).group if gatherer is not None else 1
    if group > 1:
        asked, own = (group * part.ranks, group) if whole else (group, group // part.ranks)
        how = f"{part.name}: its share" if whole else str(part)
        return f"{how}; {own} of the {asked} items that a batch of all ranks has"
    items = "its share of the items" if whole else f"of each {part.ranks} items it has one"
    inside = next((p for p in reversed([*walk(sink)]) if traits_of(p).group > 1), None)
    if inside is None:
        return f"{part.name}: {items}"
    return (
        f"{part.name}: {items}; what {describe(inside)} gathers stays whole, as more than pipes "
        "that take one item follow it"
    )
