"""Which worker makes a batch: one that has seen the volumes before, unless another would wait.

Each worker keeps the chunks that it decoded. A batch whose patches are all of cases that one
worker had before goes there again, so that no other one decodes their chunks too. It never
changes what a batch holds or when it is delivered, only who makes it; and a worker that has
nothing to do comes first, unless the next batches are on their way to it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence, Sized
from typing import Any, Protocol, TypeVar

from ...batching import Job

# Chunks of cases that were last seen so many cases ago are not kept any more, or all are.
_MOST_CASES = 16 * 1024


class Busy(Protocol):
    """A worker, as far as this module is concerned."""

    @property
    def number(self) -> int:
        """Which one."""

    @property
    def jobs(self) -> Sized:
        """What it has to do."""


B = TypeVar("B", bound=Busy)


class Affinity:
    """Remembers which worker had which case first. Lives as long as the workers."""

    def __init__(self) -> None:
        self._owners: OrderedDict[int, int] = OrderedDict()
        self._last_given: dict[int, int] = {}
        self._given = 0

    def choose(self, job: Any, workers: Sequence[B], limit: int, coming: int) -> B:
        """Return the worker that is to have a job.

        Parameters
        ----------
        job
            What is to be made.
        workers
            One of them has fewer jobs than ``limit``.
        limit
            Most jobs of one worker.
        coming
            Further jobs that can be handed out at once, or as soon as the consumer takes what is
            ready.
        """
        free = [worker for worker in workers if len(worker.jobs) < limit]
        cases = cases_of(job)
        votes = Counter(self._owners[case] for case in cases if case in self._owners)

        def rank(worker: B) -> tuple[int, int, int]:
            """Fewest jobs, most of its cases, longest without a new one."""
            known = -votes[worker.number]
            return len(worker.jobs), known, self._last_given.get(worker.number, -1)

        best = min(free, key=rank)
        owner = next((w for w in free if cases and votes[w.number] == len(cases)), None)
        if owner is None or owner is best:
            return best
        waiting = sum(not worker.jobs for worker in free)
        return owner if waiting <= coming else best

    def given(self, job: Any, worker: Busy) -> None:
        """Remember who had a job; whoever had a case first still has most of its chunks."""
        self._given += 1
        self._last_given[worker.number] = self._given
        for case in cases_of(job):
            self._owners.setdefault(case, worker.number)
            self._owners.move_to_end(case)
        while len(self._owners) > _MOST_CASES:
            self._owners.popitem(last=False)

    def forget(self, number: int) -> None:
        """Forget what a worker had: it is gone, and with it the chunks that it kept."""
        for case in [case for case, owner in self._owners.items() if owner == number]:
            del self._owners[case]
        self._last_given.pop(number, None)


def cases_of(job: Any) -> list[int]:
    """Return the case of each item, by its place in the list of cases; none for other items.

    Examples
    --------
    >>> from voxpipe.core import Sample
    >>> cases_of(Job(0, (Sample({}, identity=(4, 0)), Sample({}, identity=(4, 1)), "else")))
    [4, 4]
    """
    items = job.items if isinstance(job, Job) else ()
    identities = (getattr(item, "identity", ()) for item in items)
    return [identity[0] for identity in identities if identity]
