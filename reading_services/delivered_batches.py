"""The position of a loader in its run: the epoch, and which of its batches were delivered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..batching.job import Failure

# Where batches come as they are ready, one that takes long lets thousands of others pass, and a
# share of a graph that ends early leaves its numbers open for ever. So what came before its turn is
# kept as runs of numbers: as many as there are gaps, and not as there are batches.


class BatchRun(NamedTuple):
    """Numbers at equal distances.

    Examples
    --------
    >>> [number for number in range(12) if BatchRun(3, 4, step=2).holds(number)]
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


@dataclass(frozen=True)
class DeliveredBatches:
    """Which batches of an epoch were delivered.

    Examples
    --------
    >>> DeliveredBatches().after(0).after(2).after(3)
    DeliveredBatches(next=1, ahead=(BatchRun(first=2, length=2, step=1),))
    >>> DeliveredBatches().after(0).after(2).after(1)
    DeliveredBatches(next=3, ahead=())
    """

    next: int = 0  # the first that was not
    ahead: tuple[BatchRun, ...] = ()  # later ones that were, in order of their first

    def after(self, index: int, step: int = 1) -> DeliveredBatches:
        """Return the place after one more batch."""
        if index == self.next:
            after = DeliveredBatches(index + 1, self.ahead)
            return after._settle() if self.ahead else after
        return DeliveredBatches(self.next, _with(self.ahead, BatchRun(index, 1, step)))

    def _settle(self) -> DeliveredBatches:
        first, ahead = self.next, {run.first: run for run in self.ahead}
        while (run := ahead.get(first)) is not None:
            if run.step == 1:
                first = ahead.pop(first).end
                continue
            # Shares take turns: as many rounds at once as each of them has numbers for.
            turn: list[BatchRun] = []
            while len(turn) < run.step and (one := ahead.get(first + len(turn))) is not None:
                if one.step != run.step:
                    break
                turn.append(ahead.pop(one.first))
            rounds = min(one.length for one in turn) if len(turn) == run.step else 1
            for one in turn:
                if one.length > rounds:
                    rest = BatchRun(one.first + rounds * one.step, one.length - rounds, one.step)
                    ahead[rest.first] = rest
            first += len(turn) + (rounds - 1) * run.step
        return DeliveredBatches(first, tuple(sorted(ahead.values())))

    def holds(self, index: int) -> bool:
        """Whether a batch was delivered."""
        return index < self.next or any(run.holds(index) for run in self.ahead)

    def leave_out(self, failures: Sequence[Failure]) -> None:
        """Say that a batch has nothing to hand out; raise if something has to stand for it."""


def _with(runs: tuple[BatchRun, ...], one: BatchRun) -> tuple[BatchRun, ...]:
    rest = []
    for run in runs:
        if run.step == one.step and run.end == one.first:
            one = BatchRun(run.first, run.length + one.length, run.step)
        elif run.step == one.step and one.end == run.first:
            one = one._replace(length=one.length + run.length)
        else:
            rest.append(run)
    return tuple(sorted([*rest, one]))


@dataclass(frozen=True)
class Position:
    """Where in a run a loader is."""

    epoch: int = 0
    cursor: DeliveredBatches = field(
        default_factory=DeliveredBatches
    )  # of it, also before a resume
    failures: int = 0
    """Items of it that failed, also before a resume; ``OnError`` has a budget for them."""
