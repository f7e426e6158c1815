"""Which batches of an epoch were delivered, and which part of each a rank makes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any, NamedTuple

from ..batching import Failure
from ..core.errors import GraphError

# Where batches come as they are ready, one that takes long lets thousands of others pass, and a
# share of a graph that ends early leaves its numbers open for ever. So what came before its turn is
# kept as runs of numbers: as many as there are gaps, and not as there are batches.


class Run(NamedTuple):
    """Numbers at equal distances.

    Examples
    --------
    >>> [number for number in range(12) if Run(3, 4, step=2).holds(number)]
    [3, 5, 7, 9]
    """

    first: int  # the first of them
    length: int = 1  # how many there are
    step: int = 1  # their distance

    @property
    def end(self) -> int:
        """The number that would be the next."""
        return self.first + self.length * self.step

    def holds(self, number: int) -> bool:
        """Whether a number is one of them."""
        return self.first <= number < self.end and (number - self.first) % self.step == 0

    def without_first(self, count: int = 1) -> Run:
        """Return the others."""
        return Run(self.first + count * self.step, self.length - count, self.step)


@dataclass(frozen=True)
class Place:
    """Which batches of an epoch were delivered.

    Examples
    --------
    >>> Place().after(0).after(2).after(3)
    Place(next=1, ahead=(Run(first=2, length=2, step=1),))
    >>> Place().after(0).after(2).after(1)
    Place(next=3, ahead=())
    """

    next: int = 0  # the first that was not
    ahead: tuple[Run, ...] = ()  # later ones that were, in order of their first

    def after(self, index: int, step: int = 1) -> Place:
        """Return the place after one more batch."""
        if index == self.next:
            return Place(index + 1, self.ahead)._settled() if self.ahead else Place(index + 1)
        return Place(self.next, _with(self.ahead, Run(index, 1, step)))

    def _settled(self) -> Place:
        first, ahead = self.next, {run.first: run for run in self.ahead}
        while (run := ahead.get(first)) is not None:
            if run.step == 1:
                first = ahead.pop(first).end
                continue
            # Shares take turns: as many rounds at once as each of them has numbers for.
            turn: list[Run] = []
            while len(turn) < run.step and (one := ahead.get(first + len(turn))) is not None:
                if one.step != run.step:
                    break
                turn.append(ahead.pop(one.first))
            rounds = min(one.length for one in turn) if len(turn) == run.step else 1
            rest = [one.without_first(rounds) for one in turn]
            ahead.update((one.first, one) for one in rest if one.length)
            first += len(turn) + (rounds - 1) * run.step
        return Place(first, tuple(sorted(ahead.values())))

    def holds(self, index: int) -> bool:
        """Whether a batch was delivered."""
        return index < self.next or any(run.holds(index) for run in self.ahead)

    def leave_out(self, failures: Sequence[Failure]) -> None:
        """Say that a batch has nothing to hand out; raise if something has to stand for it."""


def _with(runs: tuple[Run, ...], one: Run) -> tuple[Run, ...]:
    rest = []
    for run in runs:
        if run.step == one.step and run.end == one.first:
            one = Run(run.first, run.length + one.length, run.step)
        elif run.step == one.step and one.end == run.first:
            one = one._replace(length=one.length + run.length)
        else:
            rest.append(run)
    return tuple(sorted([*rest, one]))


# A plan is the same on every rank, so nothing has to be sent: each rank plans the whole epoch and
# makes its own part of each batch. All end after the same batch, because it is the same plan. A
# graph that is not split runs on every rank, on its share of the items: there the pipe that gathers
# at its end is given the part of one rank, as a batch size is that of all ranks together.

KEEP, DROP, PAD, WRAP = "keep", "drop", "pad", "wrap"
UNEVEN = (DROP, PAD, WRAP)
"""What ranks may do with a last batch that is too small to be divided like the others."""


@dataclass(frozen=True)
class Part:
    """One rank's part of each batch."""

    rank: int = 0  # which rank
    ranks: int = 1  # how many there are
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
        count = len(items) // self.ranks
        return tuple(items[self.rank * count : (self.rank + 1) * count])

    def last(self, items: Sequence[Any], first: Sequence[Any], size: int) -> tuple[Any, ...]:
        """Return the last batch of all ranks, from what is left and the epoch's first items."""
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


WHOLE = Part()  # all of every batch: one process
