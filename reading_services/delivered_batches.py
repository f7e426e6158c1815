"""The position of a loader in its run: the epoch and its delivered batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..batching.job import Failure

# With order="as_ready" thousands of batches may overtake a slow one, and a share of a graph that
# ends early never delivers its remaining numbers. So batches that came early are kept as runs of
# numbers, whose count depends on the gaps and not on the batches.


class BatchRun(NamedTuple):
    """Numbers at equal distances.

    Examples
    --------
    >>> [number for number in range(12) if BatchRun(3, 4, step=2).holds(number)]
    [3, 5, 7, 9]
    """

    first: int
    length: int = 1  # count of the numbers
    step: int = 1  # their distance

    @property
    def end(self) -> int:
        """The number that would follow."""
        return self.first + self.length * self.step

    def holds(self, number: int) -> bool:
        """Whether a number is one of them."""
        return self.first <= number < self.end and (number - self.first) % self.step == 0


@dataclass(frozen=True)
class DeliveredBatches:
    """The delivered batches of an epoch.

    Examples
    --------
    >>> DeliveredBatches().after(0).after(2).after(3)
    DeliveredBatches(next=1, ahead=(BatchRun(first=2, length=2, step=1),))
    >>> DeliveredBatches().after(0).after(2).after(1)
    DeliveredBatches(next=3, ahead=())
    """

    next: int = 0  # the first batch that was not delivered
    ahead: tuple[BatchRun, ...] = ()  # later batches that were delivered, sorted

    def after(self, index: int, step: int = 1) -> DeliveredBatches:
        """Return the cursor after one more batch."""
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
            # Shares take turns: settle as many rounds at once as all of them have.
            turn: list[BatchRun] = []
            while len(turn) < run.step and (share := ahead.get(first + len(turn))) is not None:
                if share.step != run.step:
                    break
                turn.append(ahead.pop(share.first))
            rounds = min(share.length for share in turn) if len(turn) == run.step else 1
            for begin, length, step in turn:
                if length > rounds:
                    rest = BatchRun(begin + rounds * step, length - rounds, step)
                    ahead[rest.first] = rest
            first += len(turn) + (rounds - 1) * run.step
        return DeliveredBatches(first, tuple(sorted(ahead.values())))

    def holds(self, index: int) -> bool:
        """Whether a batch was delivered."""
        return index < self.next or any(run.holds(index) for run in self.ahead)

    def leave_out(self, failures: Sequence[Failure]) -> None:
        """Accept an empty batch; a subclass may raise if it needs an item for it."""


def _with(runs: tuple[BatchRun, ...], new: BatchRun) -> tuple[BatchRun, ...]:
    rest = []
    for run in runs:
        if run.step == new.step and run.end == new.first:
            new = BatchRun(run.first, run.length + new.length, run.step)
        elif run.step == new.step and new.end == run.first:
            new = new._replace(length=new.length + run.length)
        else:
            rest.append(run)
    return tuple(sorted([*rest, new]))


@dataclass(frozen=True)
class Position:
    """The position of a loader in its run."""

    epoch: int = 0
    cursor: DeliveredBatches = field(default_factory=DeliveredBatches)
    failures: int = 0
    """Failed items of the epoch, also before a resume; ``OnError`` has a budget for them."""
