"""Simulation of trainers whose batches workers in a cluster make.

The simulation has the policies of ``RayPool``: jobs by plan order to the worker with the fewest,
one job for a slow worker, a rest for one that all wait for, late jobs made again, and the jobs of
the dead for the living. Times of planning, making and receiving are given. ``cluster.py`` compares
it with real runs.
"""

from __future__ import annotations

import heapq
import math
import random
import statistics
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from typing import Any

# As in extensions/cluster/ray_pool.py.
JOBS, RECENT, SLOW, LAST, MORE = 2, 64, 1.3, 2, 8
REST, LONGEST_REST = 10.0, 600.0
POLL, LEAST_LATE, LATE = 0.1, 0.25, 3.0
MOST_WORKERS = 1024
"""Of one rank; a rate that needs more is out of reach."""


@dataclass(frozen=True)
class Cluster:
    """Ranks with as many workers each, and the seconds that their work takes."""

    workers: int
    """Of each rank."""
    make: float
    """A worker makes one batch."""
    ranks: int = 1
    """Each plans all batches of every rank, and takes a step together with the others."""
    plan: float = 0.0003
    """The main thread plans and sends one job of one rank."""
    take: float = 0.0007
    """The main thread takes over one batch."""
    receive: float = 0.006
    """A core of the trainer's node receives one batch."""
    cores: int = 4
    """Cores of each trainer's node that receive batches."""
    step: float = 0.0
    """The training step, in which the main thread takes no answers."""
    spread: float = 0.0
    """Largest part by which the time of one batch differs from ``make``."""
    slow: Mapping[int, float] = field(default_factory=dict)
    """How many times as long a worker of every rank takes."""
    deaths: Mapping[int, float] = field(default_factory=dict)
    """When a worker of every rank dies."""
    restart: float = 4.0
    """Until another worker is up in place of a dead one."""
    notice: float = 0.0
    """Until the trainer knows of a death."""


class Clock:
    """Events in the order of their times."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._number = count()

    def at(self, when: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call a function at a time."""
        event = max(when, self.now), next(self._number), partial(call, *arguments)
        heapq.heappush(self._events, event)

    def step(self) -> None:
        """Run the next event."""
        self.now, _, call = heapq.heappop(self._events)
        call()


@dataclass(eq=False)
class Worker:
    """A worker, and its jobs with the times at which they were given."""

    number: int
    factor: float
    jobs: deque[tuple[int, float]] = field(default_factory=deque)
    most: int = JOBS
    last_given: int = -1
    last_answer: float = 0.0
    is_busy: bool = False
    is_silent: bool = False
    """Whether it is dead, and the trainer may not know."""
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=LAST))
    rest: float = 0.0
    until: float = 0.0


class Rank:
    """The main thread of a trainer, its workers, and the cores that receive."""

    def __init__(self, cluster: Cluster, batches: int, clock: Clock, seed: int) -> None:
        self.cluster, self.batches, self.clock = cluster, batches, clock
        self.workers = [Worker(n, cluster.slow.get(n, 1.0)) for n in range(cluster.workers)]
        self.taken: list[float] = []
        self.made_again = 0
        self.may_take = 1  # batches that the other ranks allow
        self.arrived: Callable[[], None] = lambda: None
        self._random = random.Random(seed)
        self._ready: set[int] = set()
        self._again: deque[int] = deque()
        self._planned = self._given = 0
        self._free_at = 0.0  # the main thread
        self._will_turn = False
        self._cores = [0.0] * cluster.cores
        # As after an epoch in which no worker was slow.
        self._times = deque([cluster.make] * RECENT, maxlen=RECENT)
        for worker in self.workers:
            worker.seconds.extend([cluster.make] * LAST)
        clock.at(0.0, self.turn)
        clock.at(POLL, self._poll)
        for number, when in cluster.deaths.items():
            clock.at(when, self._die, self.workers[number])

    def turn(self) -> None:
        """Hand out jobs, and take the next batch if it is there."""
        now = self.clock.now
        if now < self._free_at:
            self._turn_later()
            return
        self._hand_out()
        number = len(self.taken)
        if number in self._ready and number < self.may_take:
            self._ready.remove(number)
            self._free_at = max(now, self._free_at) + self.cluster.take
            self.taken.append(self._free_at)
            self._free_at += self.cluster.step
            self.clock.at(self._free_at, self.arrived)
            self._turn_later()

    def _turn_later(self) -> None:
        """Take a turn as soon as the main thread is free, once."""
        if not self._will_turn:
            self._will_turn = True
            self.clock.at(self._free_at, self._due)

    def _due(self) -> None:
        self._will_turn = False
        self.turn()

    def _hand_out(self) -> None:
        self._end_rests()
        more = MORE if any(worker.most == 1 for worker in self.workers) else 0
        most = min(self.batches, len(self.taken) + JOBS * len(self.workers) + more)
        while self._again or self._planned < most:
            free = [worker for worker in self.workers if len(worker.jobs) < worker.most]
            if not free:
                return
            if self._again:
                number = self._again.popleft()
            else:
                number, self._planned = self._planned, self._planned + 1
            self._free_at = max(self.clock.now, self._free_at)
            self._free_at += self.cluster.plan * self.cluster.ranks
            self._give(min(free, key=lambda w: (len(w.jobs), w.last_given)), number)

    def _give(self, worker: Worker, number: int) -> None:
        self._given += 1
        worker.last_given = self._given
        when = max(self._free_at, self.clock.now)
        if not worker.jobs:
            worker.last_answer = when
        worker.jobs.append((number, when))
        self.clock.at(when, self._begin, worker)

    def _begin(self, worker: Worker) -> None:
        if worker.is_busy or worker.is_silent or not worker.jobs:
            return
        worker.is_busy = True
        spread = self._random.uniform(-1, 1) * self.cluster.spread
        took = self.cluster.make * worker.factor * (1 + spread)
        self.clock.at(self.clock.now + took, self._receive, worker)

    def _receive(self, worker: Worker) -> None:
        """Receive a batch; its worker makes the next one when all is sent."""
        if not worker.is_silent:
            end = max(self.clock.now, heapq.heappop(self._cores)) + self.cluster.receive
            heapq.heappush(self._cores, end)
            self.clock.at(end, self._answer, worker)

    def _answer(self, worker: Worker) -> None:
        if worker.is_silent:
            return
        number, _ = worker.jobs.popleft()
        now, worker.is_busy = self.clock.now, False
        worker.seconds.append(now - worker.last_answer)
        worker.last_answer = now
        self._times.append(worker.seconds[-1])
        self._limit(worker)
        if number >= len(self.taken):
            self._ready.add(number)
        self._begin(worker)
        self.turn()

    def _limit(self, worker: Worker) -> None:
        """Set how many jobs a worker may have, and its rest."""
        least, limit = min(worker.seconds), SLOW * statistics.median(self._times)
        rate = sum(1 / min(other.seconds) for other in self.workers if other.most)
        window = (JOBS * len(self.workers) + MORE) / rate if rate else math.inf
        if least > max(window, limit):
            worker.rest = min(max(2 * worker.rest, REST * least), LONGEST_REST)
            worker.most, worker.until = 0, self.clock.now + worker.rest
        else:
            worker.most, worker.rest = 1 if least > limit else JOBS, 0.0

    def _end_rests(self) -> None:
        none = not any(worker.most for worker in self.workers)
        for worker in self.workers:
            if worker.most == 0 and (none or worker.until <= self.clock.now):
                worker.most = 1

    def _is_open(self, number: int) -> bool:
        return number >= len(self.taken) and number not in self._ready

    def _poll(self) -> None:
        """Give late jobs to free workers as well."""
        self.clock.at(self.clock.now + POLL, self._poll)
        if self.clock.now < self._free_at:
            return
        limit = self.clock.now - max(LEAST_LATE, LATE * statistics.median(self._times))
        jobs = [job for worker in self.workers for job in worker.jobs if self._is_open(job[0])]
        numbers = [number for number, _ in jobs]
        late = sorted(job for job in jobs if job[1] < limit and numbers.count(job[0]) == 1)
        free = [worker for worker in self.workers if worker.most and not worker.jobs]
        for worker, (number, _) in zip(free, late, strict=False):
            self.made_again += 1
            self._give(worker, number)

    def _die(self, worker: Worker) -> None:
        worker.is_silent = True
        self.clock.at(self.clock.now + self.cluster.notice, self._replace, worker)

    def _replace(self, worker: Worker) -> None:
        self.workers.remove(worker)
        others = {number for other in self.workers for number, _ in other.jobs}
        lost = [n for n, _ in worker.jobs if self._is_open(n) and n not in others]
        self._again.extend(lost)
        self.made_again += len(lost)
        self.clock.at(self.clock.now + self.cluster.restart, self._add, Worker(worker.number, 1.0))
        self.turn()

    def _add(self, worker: Worker) -> None:
        self.workers.append(worker)
        self.turn()


@dataclass(frozen=True)
class Outcome:
    """The end of each batch in seconds, of the last rank, and the batches that were made again."""

    ends: list[float]
    made_again: int

    def rate(self) -> float:
        """Return the batches per second of a rank, without the first and the last quarter."""
        first, last = len(self.ends) // 4, 3 * len(self.ends) // 4
        return (last - first) / (self.ends[last] - self.ends[first])


def simulate(cluster: Cluster, batches: int) -> Outcome:
    """Return the outcome of an epoch; after each batch all ranks wait for each other."""
    clock = Clock()
    ranks = [Rank(cluster, batches, clock, seed) for seed in range(cluster.ranks)]

    def arrived() -> None:
        together = min(len(rank.taken) for rank in ranks) + 1
        for rank in ranks:
            if rank.may_take < together:
                rank.may_take = together
                rank.turn()

    for rank in ranks:
        rank.arrived = arrived
    while any(len(rank.taken) < batches for rank in ranks):
        clock.step()
    ends = [max(times) for times in zip(*(rank.taken for rank in ranks), strict=False)]
    return Outcome(ends, sum(rank.made_again for rank in ranks))


def workers_for(batches_per_second: float, cluster: Cluster) -> int | None:
    """Return the least workers of each rank for a rate of each rank; None if it is out of reach."""
    planning = cluster.plan * cluster.ranks + cluster.take + cluster.step
    if batches_per_second * max(planning, cluster.receive / cluster.cores) > 1:
        return None

    def is_enough(workers: int) -> bool:
        outcome = simulate(replace(cluster, workers=workers), 100 + 4 * workers)
        return outcome.rate() >= batches_per_second

    below, enough = 0, max(1, int(batches_per_second * cluster.make))
    while not is_enough(enough):
        below, enough = enough, 2 * enough
        if enough > MOST_WORKERS:
            return None
    while enough - below > max(1, enough // 50):
        middle = (below + enough) // 2
        below, enough = (below, middle) if is_enough(middle) else (middle, enough)
    return enough
