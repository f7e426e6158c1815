"""Affinity of batches to nodes: a node that has read a case has it in its caches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from ...reading_services.workers.pool import Affinity, cases_of, has_room
from ...reading_services.workers.worker_process import Worker

# Limit of the cases to remember. It bounds the memory of the trainer at about 100 MB.
_MOST_CASES = 1024 * 1024


class NodeAffinity(Affinity):
    """Memory of the node that read each case last, besides that of the workers.

    New cases are spread over nodes by their number, so ranks that share workers agree on the node.
    The content and order of batches do not depend on it, and no worker waits for it.
    """

    def __init__(self, home: str, count_places: Callable[[], int] | None = None) -> None:
        super().__init__()
        self._home, self._count_places = home, count_places
        self._readers: dict[int, str] = {}

    def choose(self, job: Any, workers: Sequence[Worker], limit: int, coming: int) -> Worker:
        """Return the worker for a job: on the node that has read most of its cases, if it may."""
        if self._count_places is not None:
            # Loaders that share batches send equal jobs to one actor, also if others have fewer.
            place = job.index % max(1, self._count_places())
            for worker in workers:
                is_its = getattr(worker, "place", None) == place
                if is_its and (worker.most_jobs >= limit or has_room(worker, limit)):
                    return worker
        nodes = sorted(worker.node or self._home for worker in workers)
        cases = cases_of(job)
        if cases and nodes[0] != nodes[-1]:
            votes = Counter(self._readers.get(case, nodes[case % len(nodes)]) for case in cases)
            reader = max(votes, key=votes.__getitem__)
            free = [worker for worker in workers if has_room(worker, limit)]
            near = [worker for worker in free if (worker.node or self._home) == reader]
            # Idle workers elsewhere come first, unless they get the next jobs anyway.
            idle = sum(not worker.jobs for worker in free)
            if near and (idle <= coming or not all(worker.jobs for worker in near)):
                workers = near
        return super().choose(job, workers, limit, coming)

    def remember(self, job: Any, worker: Worker) -> None:
        """Record the worker of a job, and its node as the reader of the cases."""
        super().remember(job, worker)
        for case in cases_of(job):
            self._readers[case] = worker.node or self._home
        while len(self._readers) > _MOST_CASES:
            del self._readers[next(iter(self._readers))]
