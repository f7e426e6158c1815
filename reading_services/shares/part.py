"""Which part of every batch one of several ranks makes, and how an epoch ends for all of them.

A plan is the same on every rank, so nothing has to be sent: each rank plans the whole epoch and
makes its own part of each batch. All end after the same batch, because it is the same plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

from ...core.errors import GraphError

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
        """Return the items of a batch of all ranks together; ``group`` of them are gathered.

        Raises
        ------
        GraphError
            The ranks cannot have equal parts of it.
        """
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
        """Return the last batch of all ranks; empty if there is none.

        Parameters
        ----------
        items
            What is left, fewer than ``size``.
        first
            The epoch's first items, up to ``size``; used where the end wraps around.
        size
            Items of a batch.
        """
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
