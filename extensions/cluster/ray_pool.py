"""The workers of a cluster: processes on the trainer's node, and actors of Ray on other nodes.

Only workers that are up have jobs, so no job waits for a node that has no room. The living make the
jobs of the dead, and a late job is made twice: both batches are the same, and the first counts.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import re
import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from typing import Any, NamedTuple

import numpy as np
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ...core.call_site import warn
from ...core.errors import IdleWorkers, VolumeNotFound, WorkerDied
from ...core.locks import timeout_or_none
from ...reading_services.memory_budget import SlotBudget
from ...reading_services.transport.messages import BatchMessage, ErrorMessage, unpack
from ...reading_services.transport.shared_memory import receive_descriptor, send_descriptor
from ...reading_services.transport.slot_reader import Arrival, SlotReader
from ...reading_services.work import Work
from ...reading_services.workers.payload import Payload
from ...reading_services.workers.pool import WorkerPool
from ...reading_services.workers.script import script_of_this_process
from ...reading_services.workers.worker_process import Worker
from .actor import Actor, facts_of_process
from .stream import Direct, Greeting, Relay, StepNote, StreamArrival, StreamServer

_ray: Any = ray  # these functions have no types
_utilities: Any = ray.util
_NO_ROOM = (
    "Each actor needs a free CPU of Ray (see `ray status`), and other loaders keep theirs: give "
    'resources={"num_cpus": 0.5}, fewer num_workers, or more local_workers.'
)
# Seconds after which actors that are not up are worth a warning.
_LONG = 20.0
# The last line of a traceback.
_PYTHON_ERROR = re.compile(r"^\s*([\w.]*(?:Error|Exception): .*)$", re.MULTILINE)
_NO_FILE = re.compile(r"there is no file (.+)\.$")
# Seconds between two looks for late jobs, and the least age of a late one.
_POLL, _LEAST_LATE = 0.1, 0.25
# Times of so many batches give the usual one.
_RECENT = 64
# With fewer times, no job is late.
_FEW = 8
# A worker whose last batches took more than this many times the usual has one job at a time.
_SLOW, _LAST = 1.3, 2
# From this part of the time of making a batch on, receiving it from another node is dear.
_DEAR = 0.5
# Further batches in flight while a worker is slow.
_MORE = 8


class ActorOptions(NamedTuple):
    """How actors are started."""

    local_workers: int
    resources: Mapping[str, float]
    late: float
    """A job that takes so many times the usual is given to a free worker, too; 0 for never."""


class ActorProcess:
    """An actor, with the methods of a process."""

    sentinel = None
    exitcode = None

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self._end = threading.Event()
        self.pid = 0
        self.cause: BaseException | None = None

    def end(self, cause: BaseException | None) -> None:
        """Note that its process has ended."""
        self.cause = cause
        self._end.set()

    def is_alive(self) -> bool:
        """Whether its process has not ended, as far as Ray knows."""
        return not self._end.is_set()

    def join(self, seconds: float | None) -> None:
        """Wait until it has ended."""
        self._end.wait(seconds)

    def kill(self) -> None:
        """End it."""
        with contextlib.suppress(Exception):  # Ray is not running any more
            ray.kill(self._actor)


class _Task(NamedTuple):
    """A job of a worker."""

    run: int
    job: Any
    since: float


@dataclass(eq=False)
class ActorWorker(Worker):
    """An actor, its channel, and its jobs."""

    host: str = ""

    def __str__(self) -> str:
        where = f"pid {self.process.pid} on node {self.host}" if self.host else "not up yet"
        return f"actor {self.number} ({where})"

    def handles(self) -> list[Any]:
        """Return the handles that are ready when it answers or ends."""
        return [self.channel]

    def open(self, data: Any) -> tuple[Any, int]:
        """Return a batch that this worker made, and its size in bytes."""
        if isinstance(data, bytes):
            return super().open(data)
        header, places = data
        arrival = StreamArrival(Arrival(self.slots), places)
        return unpack(header, arrival), len(header) + arrival.bytes

    def death(self, seconds: float) -> WorkerDied:
        """Return the error with its end and its last status."""
        self.process.join(timeout_or_none(min(seconds, 1.0)))
        cause = self.process.cause
        why = "" if cause is None else f" ({_first_line(cause)})"
        doing = self.busy_with()
        do = "Has its node voxpipe and memory, and may it connect to this one? See Ray's log of it."
        return WorkerDied(f"{self} ended{why} while it had {doing.work}", do=do).at(doing.origin)

    def failed_to_start(self) -> bool:
        """Whether it ended by itself before it was up, so that a replacement would too."""
        return not self.is_up and bool(_PYTHON_ERROR.search(str(self.process.cause)))


def _name_node(worker: Worker, answer: Any) -> Any:
    """Return an answer; errors about files and modules that a node lacks name the node."""
    if not (worker.node and isinstance(answer, ErrorMessage) and answer.error):
        return answer
    error = pickle.loads(answer.error)
    if isinstance(error, ImportError):
        error.add_note(f"{worker} lacks this module: install it there, or in a folder of all nodes")
        return replace(answer, error=pickle.dumps(error))
    match = _NO_FILE.match(error.message) if isinstance(error, VolumeNotFound) else None
    if match is None or not os.path.exists(match[1]):
        return answer
    error.message = f"{worker} has no file {match[1]}, which this node has."
    error.do = "Put it on a disk that all nodes share, or in a bucket, or give "
    error.do += "local_workers=num_workers."
    return replace(answer, error=pickle.dumps(error))


def _first_line(error: BaseException) -> str:
    """Return the error in an actor, or else the first line of Ray's text about its end."""
    text = str(error).strip()
    lines: list[str] = _PYTHON_ERROR.findall(text) or [text.partition("\n")[0]]
    return lines[-1].strip().rstrip(".")


class RayPool(WorkerPool):
    """Workers of a cluster with the same payload."""

    def __init__(
        self,
        work: Work,
        payload: Payload,
        count: int,
        context: BaseContext,
        budget: SlotBudget,
        ahead: int,
        imports: Sequence[str],
        options: ActorOptions,
    ) -> None:
        self._options, self._imports = options, imports
        self._starting: list[Worker] = []
        self._doors: dict[int, Connection] = {}  # ends of channels, until their actor connects
        self._lock = threading.Lock()
        self._tasks: dict[Worker, deque[_Task]] = {}
        self._paces: dict[Worker, deque[float]] = {}  # seconds of the last batches
        self._ready_jobs: set[int] = set()
        self._pass = 0
        self._times: deque[float] = deque(maxlen=_RECENT)
        self._receiving: deque[float] = deque(maxlen=_RECENT)
        self._warn_at = time.monotonic() + _LONG
        self._facts = facts_of_process(imports)
        self._script = script_of_this_process()
        self._home = ray.get_runtime_context().get_node_id()
        self._actor_class: Any = ray.remote(Actor)
        self._server = StreamServer(str(_utilities.get_node_ip_address()), self._greet)
        try:
            super().__init__(work, payload, count, context, budget, ahead, imports)
        except BaseException:
            self._server.close()
            raise
        self._poll = _POLL if self._poll is None else min(self._poll, _POLL)

    def _add(self) -> None:
        if self._count < self._options.local_workers:
            super()._add()
        else:
            self._starting.append(self._start_actor())

    def _start_actor(self, before: SlotReader | None = None) -> Worker:
        number, self._count = self._count, self._count + 1
        ours, theirs = self._context.Pipe(duplex=True)
        slots = SlotReader(self._budget, self._share, self._settings.ahead, before=before)
        options = {
            "num_cpus": 1,
            **self._options.resources,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": self._strategy(number),
        }
        actor = self._actor_class.options(**options).remote()
        worker = ActorWorker(number, ActorProcess(actor), ours, slots, self._at)
        with self._lock:
            self._doors[number] = theirs
        call = actor.serve.remote(self._addresses(), self._server.key, number, self._imports)
        call.future().add_done_callback(partial(self._note_exit, worker))
        worker.limit_waits(self.limits.start + self.limits.item)
        return worker

    def _strategy(self, number: int) -> Any:
        """Return where an actor goes: to the other nodes in turn, if there are any."""
        # Always given: the placement group of a trial would catch the actor otherwise.
        nodes = sorted(node["NodeID"] for node in _ray.nodes() if node["Alive"])
        others = [node for node in nodes if node != self._home]
        if not others:
            return "SPREAD"
        node = others[number % len(others)]
        return NodeAffinitySchedulingStrategy(node, soft=True, _spill_on_unavailable=True)

    def _addresses(self) -> dict[str, Any]:
        return {self._home: self._server.unix_address, "": self._server.address}

    def _note_exit(self, worker: Worker, call: Any) -> None:
        """Close the channel of an actor that has ended; a thread of Ray calls it."""
        worker.process.end(call.exception())
        if (door := self._take_door(worker.number)) is not None:
            door.close()

    def _take_door(self, number: int) -> Connection | None:
        with self._lock:
            return self._doors.pop(number, None)

    def _greet(self, stream: Connection, facts: dict[str, Any]) -> None:
        """Connect a new actor with its channel, in the thread that the stream has."""
        door = self._take_door(int(facts["number"]))
        if door is None:  # it was stopped meanwhile
            stream.close()
            return
        door.send(Greeting(facts))
        if any(facts.get(name) != value for name, value in self._facts.items()):
            stream.close()  # the pool refuses it
            door.close()
            return
        settings = replace(
            self._settings,
            number=int(facts["number"]),
            threads=max(1, int(self._options.resources.get("num_cpus", 1))),
            script=self._script,
            signals=frozenset(),
            ends_late=False,
        )
        stream.send_bytes(pickle.dumps((self._payload, settings)))
        if facts["is_near"]:
            with door, stream:
                door.send(Direct())
                send_descriptor(door, stream.fileno())
            return
        Relay(door, stream, self._share, self._settings.ahead, self._receiving).run()

    def _note(self, worker: Worker, message: Any) -> bool:
        if isinstance(message, StepNote):
            worker.notes = np.frombuffer(message.memory, np.uint8)
        elif isinstance(message, Direct):
            channel, worker.channel = worker.channel, Connection(receive_descriptor(worker.channel))
            channel.close()
            worker.limit_waits(worker.patience)
        elif isinstance(message, Greeting):
            worker.process.pid = message.facts["pid"]
            worker.host = message.facts["host"]  # type: ignore[attr-defined]
            is_home = message.facts["node"] == self._home
            worker.node = "" if is_home else message.facts["node"]
            self._refuse_others(worker, message.facts)
        else:
            return super()._note(worker, message)
        return True

    def _refuse_others(self, worker: Worker, facts: Mapping[str, Any]) -> None:
        """Raise WorkerDied if an actor has another version, or lacks a module of the volumes."""
        for name, value in self._facts.items():
            if (theirs := facts.get(name)) != value:
                self.is_broken = True
                raise WorkerDied(
                    f"{worker} cannot be used: {name} is {theirs} there, and {value} here",
                    do="Install the same packages on all nodes, or give local_workers=num_workers.",
                )

    def _every(self) -> list[Worker]:
        return [*super()._every(), *self._starting]

    def _idle(self) -> tuple[str, str]:
        waiting = len(self._starting)
        return f"no worker is up, and {waiting} of them wait for a node that has room", _NO_ROOM

    def _warn_of_waiting(self) -> None:
        """Warn once if actors have waited for long while others work."""
        if self._starting and time.monotonic() > self._warn_at:
            self._warn_at = math.inf
            waiting = f"{len(self._starting)} of {len(self._every())} workers wait for a node"
            warn(
                f"{waiting} that has room, and the others make their batches. {_NO_ROOM}",
                IdleWorkers,
            )

    def is_up(self) -> bool:
        """Whether a worker is up, and all processes on this node are."""
        return bool(self.workers) and super().is_up()

    def is_well(self, payload: bytes | None = None) -> bool:
        """Whether the pool can go on; actors that have ended are replaced."""
        if self.is_broken or os.getpid() != self._process or not ray.is_initialized():
            return False
        local = (worker for worker in self.workers if not isinstance(worker, ActorWorker))
        return payload in (None, self._payload) and all(w.process.is_alive() for w in local)

    def in_flight(self) -> int:
        """Return the number of jobs of this pass that no worker has answered."""
        return len({task.job.index for task in self._open_jobs()})

    def _open_jobs(self) -> Iterator[_Task]:
        ready = self._ready()
        for tasks in self._tasks.values():
            yield from (t for t in tasks if t.run == self.passes and t.job.index not in ready)

    def give(self, worker: Worker, job: Any, seed: int, epoch: int) -> None:
        """Send one job."""
        self._seed = seed, epoch
        self._tasks.setdefault(worker, deque()).append(_Task(self.passes, job, time.monotonic()))
        self._paces.setdefault(worker, deque(maxlen=_LAST))
        super().give(worker, job, seed, epoch)

    def abandon(self) -> None:
        """Leave the jobs of this pass to their workers; their answers are dropped."""

    def _ready(self) -> set[int]:
        """Return the numbers of this pass's jobs that have an answer."""
        if self._pass != self.passes:
            self._pass, self._ready_jobs = self.passes, set()
        return self._ready_jobs

    def answers(self, deadline: float, seconds: float) -> Iterator[tuple[Worker, Any]]:
        """Wait until a worker answers, ends or starts, and yield the first answer to each job."""
        for worker, answer in super().answers(deadline, seconds):
            if isinstance(answer, (BatchMessage, ErrorMessage)):
                if self._is_first(worker, answer):
                    yield worker, _name_node(worker, answer)
                elif isinstance(answer, BatchMessage):
                    worker.open(answer.data)  # and drop it, which frees its slots
            else:
                yield worker, answer
        for worker in [w for w in self._starting if w.is_up]:
            self._starting.remove(worker)
            self.workers.append(worker)
        self._warn_of_waiting()
        self._make_late_ones_again()

    def _is_first(self, worker: Worker, answer: Any) -> bool:
        """Note the time of a batch; return whether it is the first answer to its job."""
        task, times = self._tasks[worker].popleft(), self._paces[worker]
        times.append(answer.report.seconds)
        self._times.append(answer.report.seconds)
        usual = statistics.median(self._times)
        is_known = len(self._times) >= _FEW and len(times) == _LAST
        is_slow = is_known and min(times) > _SLOW * usual
        worker.most_jobs = 1 if is_slow else Worker.most_jobs
        self.more_in_flight = max((_MORE for w in self.workers if w.most_jobs == 1), default=0)
        ready = self._ready()
        if task.run != self.passes or answer.index in ready:
            return False
        ready.add(answer.index)
        return True

    def _make_late_ones_again(self) -> None:
        """Give each late job to a free worker as well."""
        if not self._options.late or len(self._times) < _FEW:
            return
        usual = statistics.median(self._times)
        limit = time.monotonic() - max(_LEAST_LATE, self._options.late * usual)
        waiting = list(self._open_jobs())
        indices = [task.job.index for task in waiting]
        late = [t for t in waiting if t.since < limit and indices.count(t.job.index) == 1]
        free = [w for w in self.workers if not (w.jobs or w.is_gone)]
        late.sort(key=lambda task: task.since)
        for worker, task in zip(free, late, strict=False):
            self.give(worker, task.job, *self._seed)

    def replace(self, worker: Worker) -> Worker:
        """Replace a dead worker, and return the new one, which has no jobs yet."""
        tasks = self._tasks.pop(worker, ())
        others = {task.job.index for task in self._open_jobs()} | self._ready()
        worker.jobs = deque(t.job for t in tasks if t.run == self.passes)
        worker.jobs = deque(job for job in worker.jobs if job.index not in others)
        if not isinstance(worker, ActorWorker):
            return super().replace(worker)
        is_leaving = worker in self._leaving
        self._remove(worker)
        self._end(worker)
        if is_leaving:
            return worker
        fresh = self._start_actor(worker.slots)
        self._starting.append(fresh)
        return fresh

    def _remove(self, worker: Worker) -> None:
        super()._remove(worker)
        if worker in self._starting:
            self._starting.remove(worker)

    def _end(self, worker: Worker) -> None:
        if (door := self._take_door(worker.number)) is not None:
            door.close()
        super()._end(worker)

    def _note_end(self, worker: Worker) -> Iterator[WorkerDied]:
        if worker in self._starting and not worker.jobs:
            worker.is_gone = True
            yield worker.death(self.limits.stop)
            return
        yield from super()._note_end(worker)

    def costs(self) -> str:
        """Return the cost of a batch of another node as a text; empty before some have come."""
        if len(self._receiving) < _FEW:
            return ""
        make, receive = statistics.median(self._times), statistics.median(self._receiving)
        text = f"; a batch takes {receive * 1e3:.1f} ms of this node's processors to receive, and "
        text += f"{make * 1e3:.1f} ms of a worker to make"
        if receive < _DEAR * make:
            return text
        return f"{text}: other nodes hardly help, raise local_workers while this one has cores"

    def stop(self) -> None:
        """Stop every worker."""
        super().stop()
        self._starting = []
        if os.getpid() == self._process:
            self._server.close()
            for number in list(self._doors):
                if (door := self._take_door(number)) is not None:
                    door.close()
