"""Batches of a case go to the node that has read it, and stay the same."""

import heapq
import os
import random
import threading
from collections import Counter, deque
from dataclasses import dataclass, field

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.batching.job import Job
from voxpipe.core import Sample
from voxpipe.extensions.cluster.node_affinity import NodeAffinity
from voxpipe.reading_services.workers.pool import Affinity, cases_of, has_room

LIMIT = 2


@dataclass(eq=False)
class Worker:
    number: int
    node: str
    jobs: deque = field(default_factory=deque)
    most_jobs: int = 9


def workers_of(nodes, each):
    return [Worker(n, f"node{n % nodes}" if n % nodes else "") for n in range(nodes * each)]


def job(index, *cases):
    return Job(index, tuple(Sample({}, identity=(case, 0)) for case in cases))


def epoch(plan, workers, affinity, paces):
    """Run the jobs of ``plan``; return the (case, node) pairs that read, and the time it took."""
    jobs = deque(job(number, case) for number, case in enumerate(plan))
    order, ready, events, reads, now = deque(), set(), [], Counter(), 0.0

    def begin(worker):
        reads.update((case, worker.node) for case in cases_of(worker.jobs[0]))
        heapq.heappush(events, (now + paces.uniform(0.7, 1.3), worker.number))

    while jobs or order:
        while jobs and len(order) < LIMIT * len(workers):
            if not any(has_room(worker, LIMIT) for worker in workers):
                break
            one = jobs.popleft()
            order.append(one.index)
            coming = min(LIMIT * len(workers) - len(order), len(jobs))
            worker = affinity.choose(one, workers, LIMIT, coming)
            affinity.remember(one, worker)
            worker.jobs.append(one)
            if len(worker.jobs) == 1:
                begin(worker)
        now, number = heapq.heappop(events)
        ready.add(workers[number].jobs.popleft().index)
        if workers[number].jobs:
            begin(workers[number])
        while order and order[0] in ready:
            order.popleft()
    return reads, now


def epochs(affinity, nodes=4, each=4, cases=160, count=4):
    """Return how many nodes have read each case, on average, and the time of all epochs."""
    workers, paces, total, every = workers_of(nodes, each), random.Random(7), 0.0, Counter()
    for _ in range(count):
        reads, seconds = epoch(paces.sample(range(cases), cases), workers, affinity, paces)
        every += reads
        total += seconds
    return len(every) / cases, total


def test_few_nodes_read_each_case():
    """Fewer than with the affinity of workers alone, in the same time."""
    by_worker, usual = epochs(Affinity())
    by_node, seconds = epochs(NodeAffinity("home"))

    assert by_worker > 2.0
    assert by_node < 1.6
    assert seconds < 1.05 * usual


def test_a_batch_goes_to_the_node_of_most_of_its_cases():
    """Idle workers elsewhere come first if no further jobs are coming."""
    affinity, workers = NodeAffinity("home"), workers_of(2, 2)
    for case, number in ((0, 1), (1, 3), (2, 0)):
        affinity.remember(job(case, case), workers[number])

    assert affinity.choose(job(3, 0, 1, 2), workers, LIMIT, 9).node == "node1"
    for number in (1, 3):
        workers[number].jobs.append(None)
    assert affinity.choose(job(4, 0, 1, 2), workers, LIMIT, 9).node == "node1"
    assert affinity.choose(job(4, 0, 1, 2), workers, LIMIT, 0).node == ""
    for number in (1, 3):
        workers[number].jobs.append(None)
    assert affinity.choose(job(5, 0, 1, 2), workers, LIMIT, 9).node == ""


def test_two_ranks_send_a_new_case_to_one_node():
    """The home of each is another one."""
    first, second = workers_of(3, 2), workers_of(3, 2)
    for worker in first:
        worker.node = worker.node or "a"
    for worker in second:
        worker.node = {"": "a", "node1": "", "node2": "node2"}[worker.node]
    for case in range(12):
        one = NodeAffinity("a").choose(job(0, case), first, LIMIT, 9).node
        assert (NodeAffinity("node1").choose(job(0, case), second, LIMIT, 9).node or "node1") == one


class Counted(vp.Backend):
    """A file that notes the node that opens it."""

    def __init__(self, request):
        self._voxels = np.load(request.path)[None]
        with open(f"{request.path}.nodes", "a") as note:
            note.write(f"{os.getppid()}\n")  # the Ray process of its node
        super().__init__(vp.Header.of(self._voxels.shape, self._voxels.dtype, np.eye(4)))

    def read(self, region, channels=None):
        return vp.Voxels(self._voxels[(slice(*(channels or (0, 1))), *region.slices)])


def wait(batch):
    threading.Event().wait(random.uniform(0.01, 0.03))
    return batch


def is_counted(request):
    return str(request.path).endswith(".counted")


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of Ray's own files
def test_one_node_reads_most_cases(tmp_path):
    """Three epochs on two nodes of two workers each."""
    cases = 80
    for number in range(cases):
        with open(tmp_path / f"{number}.counted", "wb") as file:
            np.save(file, np.full((8, 8, 8), number, np.int16))
    vp.register_backend("counted", is_counted, Counted)
    try:
        paths = [{"image": str(tmp_path / f"{number}.counted")} for number in range(cases)]
        pipe = vp.from_cases(paths).shuffle().open_volume().lazy_patch(4, samples_per_volume=2)
        service = vp.RayReadingService(4, local_workers=0)
        pipe = pipe.batch_patches(2).map(wait)
        with vp.DataLoader2(pipe, None, service, seed=7) as loader:
            list(loader)
            while len(loader.reading_service._pool.workers) < 4:
                list(loader)
            for file in tmp_path.glob("*.nodes"):
                file.unlink()
            for _ in range(3):
                list(loader)
    finally:
        vp.volumes.unregister_backend("counted")
    own = {str(os.getppid())}  # the trainer reads headers
    counts = [len({*file.read_text().split()} - own) for file in tmp_path.glob("*.nodes")]
    assert len(counts) == cases
    assert sum(counts) / cases < 1.6  # 1.7 with the affinity of workers alone
