"""The workers of a cluster: processes on the trainer's node, and actors of Ray on other nodes.

Only workers that are up have jobs, so no job waits for a node that has no room. The living make the
jobs of the dead, and a late job is made twice: both batches are the same, and the first counts.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import pickle
import re
import statistics
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
import ray
from ray.exceptions import RayActorError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from ...core.call_site import WarnOnce, warn
from ...core.errors import IdleWorkers, LikelyMistake, VolumeNotFound, WorkerDied
from ...core.locks import timeout_or_none
from ...reading_services.memory_budget import default_slot_bytes
from ...reading_services.transport.messages import (
    BatchMessage,
    ErrorMessage,
    RepeatedAnswer,
    unpack,
)
from ...reading_services.transport.shared_memory import receive_descriptor, send_descriptor
from ...reading_services.transport.slot_reader import BatchBuffers, SlotReader
from ...reading_services.workers.pool import PoolSettings, WorkerPool
from ...reading_services.workers.script import script_of_this_process
from ...reading_services.workers.worker_process import Worker
from .actor import Actor, Caller, facts_of_process, portable
from .node_affinity import NodeAffinity
from .shared_actor import MANAGER, manager_of
from .stream import Direct, Greeting, Relay, StepNote, StreamArrival, StreamServer, lift_limit, shut

_ray: Any = ray  # these functions have no types
_utilities: Any = ray.util
_NO_ROOM = (
    "Each actor needs a free CPU of Ray (see `ray status`), and other loaders keep theirs: give "
    'resources={"num_cpus": 0.5}, fewer num_workers, or more local_workers.'
)
# Seconds after which actors that are not up are worth a warning.
_LONG = 60.0
# The last line of a traceback.
_PYTHON_ERROR = re.compile(r"^\s*([\w.]*(?:Error|Exception): .*)$", re.MULTILINE)
_NO_FILE = re.compile(r"there is no (?:file or folder|file|folder) (.+)\.$")
# Seconds between two looks for late jobs, and the least age of a late one.
_POLL, _LEAST_LATE = 0.1, 0.25
# Times of so many batches give the usual one.
_RECENT = 64
# With fewer times, no job is late.
_FEW = 8
# A worker whose last batches took more than this many times the usual has one job at a time.
_SLOW, _LAST = 1.3, 2
# Times of its last batch that a worker rests if all others wait for it, and the longest rest in
# seconds.
_REST, _LONGEST_REST = 10.0, 600.0
# From this part of the time of making a batch on, receiving it from another node is dear.
_DEAR = 0.5
# Further batches in flight while a worker is slow.
_MORE = 8


class ActorOptions(NamedTuple):
    """How actors are started."""

    local_workers: int
    payload: bytes  # the payload of actors, without the variables of this process
    threads: int  # patches that each realizes at once
    resources: Mapping[str, Any]
    pool: str | None  # the name of the actors that ranks share
    shared_bytes: int  # of batches that each of them keeps for other loaders
    late: float
    """A job that takes so many times the usual is given to a free worker, too; 0 for never."""


class ActorProcess:
    """An actor, with the methods of a process."""

    sentinel = None
    exitcode = None

    def __init__(self, actor: Any = None) -> None:
        self._actor = actor  # None for one that other ranks use, too
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
        if self._actor is None:  # its manager ends it after the last rank
            self._end.set()
        elif ray.is_initialized():  # a call would start another Ray
            with contextlib.suppress(Exception):  # it ends meanwhile
                ray.kill(self._actor)


class _Task(NamedTuple):
    """A job of this pass at a worker."""

    job: Any
    since: float


@dataclass
class _Pace:
    """Times of a worker's last batches, and how many jobs it may have."""

    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_LAST))
    most_jobs: int = Worker.most_jobs
    rest: float = 0.0
    until: float = 0.0  # the end of its rest

    def limit(self, usual: float, window: float) -> None:
        """Set its limit from the usual time, and the time in which all workers fill the window."""
        least = min(self.seconds)
        if least > max(window, _SLOW * usual):
            # Each failed trial doubles the rest: the batches after this one wait for it.
            self.rest = min(max(2 * self.rest, _REST * least), _LONGEST_REST)
            self.most_jobs, self.until = 0, time.monotonic() + self.rest
        else:
            self.most_jobs = 1 if least > _SLOW * usual else Worker.most_jobs
            self.rest = 0.0


@dataclass(eq=False)
class ActorWorker(Worker):
    """An actor, its channel, and its jobs."""

    host: str = ""
    place: int = 0  # among the actors of the pool
    batches: dict[int, Any] = field(default_factory=dict)
    """Batches of another node that have arrived, by their numbers."""

    def __str__(self) -> str:
        where = f"pid {self.process.pid} on node {self.host}" if self.host else "not up yet"
        return f"actor {self.number} ({where})"

    def handles(self) -> list[Any]:
        """Return the handles that are ready when it answers or ends."""
        return [self.channel]

    def open(self, data: Any) -> tuple[Any, int]:
        """Return a batch that this worker made, and its size in bytes."""
        if isinstance(data, int):
            header, parts = self.batches.pop(data)
            arrival = StreamArrival(parts)
            batch, size = unpack(header, arrival), len(header) + arrival.bytes
        else:
            batch, size = super().open(data)
        for failure in getattr(batch, "failures", ()):
            if failure.error == VolumeNotFound.__name__ and (file := _missing(failure.message)):
                raise self.without(file)
        return batch, size

    def without(self, file: str) -> VolumeNotFound:
        """Return the error about a file of this node that its node lacks."""
        do = "Put it on a disk that all nodes share, or in a bucket, or give "
        do += "local_workers=num_workers."
        return VolumeNotFound(f"{self} has no file {file}, which this node has.", do=do)

    def death(self, seconds: float) -> WorkerDied:
        """Return the error with its end and its last status."""
        self.process.join(timeout_or_none(min(seconds, 1.0)))
        cause = self.process.cause
        why = "" if cause is None else f" ({_first_line(cause)})"
        doing = self.busy_with()
        do = "Has its node voxpipe and memory? See Ray's log of it."
        return WorkerDied(f"{self} ended{why} while it had {doing.work}", do=do).at(doing.origin)

    def failed_to_start(self) -> bool:
        """Whether it ended by itself before it was up, so that a replacement would too."""
        return not self.is_up and bool(_PYTHON_ERROR.search(str(self.process.cause)))


def _missing(message: str) -> str:
    """Return the file of a message that says that there is none, if this node has it."""
    match = _NO_FILE.match(message)
    return match[1] if match is not None and os.path.exists(match[1]) else ""


def _name_node(worker: Worker, answer: Any) -> Any:
    """Return an answer; errors about files and modules that a node lacks name the node."""
    if not (isinstance(worker, ActorWorker) and isinstance(answer, ErrorMessage) and answer.error):
        return answer
    error = pickle.loads(answer.error)
    if isinstance(error, ImportError):
        error.add_note(f"{worker} lacks this module: install it there, or in a folder of all nodes")
    elif worker.node and isinstance(error, VolumeNotFound) and (file := _missing(error.message)):
        error = worker.without(file).at(error.origin, error.case, error.item, error.key)
    else:
        return answer
    return replace(answer, error=pickle.dumps(error))


def _on(node: str) -> Any:
    """Return the option of an actor that runs on a node, or on another if this has no room."""
    return NodeAffinitySchedulingStrategy(node, soft=True, _spill_on_unavailable=True)


def _first_line(error: BaseException) -> str:
    """Return the error in an actor, or else the first line of Ray's text about its end."""
    text = str(error).strip()
    lines: list[str] = _PYTHON_ERROR.findall(text) or [text.partition("\n")[0]]
    return lines[-1].strip().rstrip(".")


class RayPool(WorkerPool):
    """Workers of a cluster with the same payload."""

    has_actors = True

    def __init__(self, settings: PoolSettings, options: ActorOptions) -> None:
        self._options, self._imports = options, settings.imports
        self.far_payload = options.payload
        self._starting: list[Worker] = []
        self._starts: dict[Worker, float] = {}  # times at which they were started
        # By the number of an actor: the end of its channel until it connects, and then its stream.
        self._doors: dict[int, tuple[Connection, ActorWorker]] = {}
        self._streams: dict[int, Connection] = {}
        self._lock = threading.Lock()
        self._tasks: dict[Worker, dict[int, _Task]] = {}
        self._paces: defaultdict[Worker, _Pace] = defaultdict(_Pace)
        self._ready: set[int] = set()  # jobs of this pass that have an answer
        self._times: deque[float] = deque(maxlen=_RECENT)
        self._receiving: deque[float] = deque(maxlen=_RECENT)
        self._waits: deque[float] = deque(maxlen=_RECENT)  # of jobs at actors that ranks share
        self._has_warned, self._once = False, WarnOnce()
        self._facts = facts_of_process(settings.imports)
        script = script_of_this_process()
        self._script: dict[str, Any] = {**script, "sys_argv": sys.argv} if script else {}
        self._home = ray.get_runtime_context().get_node_id()
        self._actor_class: Any = ray.remote(Actor)
        most = (settings.ahead + 1) * settings.workers
        self._buffers = BatchBuffers(most, settings.budget.limit or default_slot_bytes())
        self._server = StreamServer(str(_utilities.get_node_ip_address()), self._greet)
        try:
            super().__init__(settings)
        except BaseException:
            self._server.close()
            raise
        shares = bool(options.shared_bytes)
        self.affinity = NodeAffinity(self._home, self._count_places if shares else None)
        self._poll = _POLL if self._poll is None else min(self._poll, _POLL)

    def _add(self) -> None:
        if self._count < self._options.local_workers:
            super()._add()
        else:
            places = {worker.place for worker in self._every() if isinstance(worker, ActorWorker)}
            place = next(place for place in itertools.count() if place not in places)
            self._starting.append(self._start_actor(place))

    def _start_actor(self, place: int, before: SlotReader | None = None) -> Worker:
        if not ray.is_initialized():  # a call would start another Ray
            do = "Call ray.shutdown() after the loader's shutdown()."
            raise WorkerDied("Ray was shut down while a loader uses it", do=do)
        number, self._count = self._count, self._count + 1
        ours, theirs = self._context.Pipe(duplex=True)
        slots = SlotReader(self._budget, self._share, self._settings.ahead, before=before)
        options = {
            "num_cpus": 1,
            **self._options.resources,
            "max_restarts": 0,
            "max_task_retries": 0,
            "scheduling_strategy": self._strategy(place),
        }
        pool = self._options.pool
        actor: Any = None
        if pool is None:
            actor = self._actor_class.options(**options).remote()
        worker = ActorWorker(number, ActorProcess(actor), ours, slots, self._at, place=place)
        with self._lock:
            self._doors[number] = theirs, worker
        addresses = {self._home: self._server.unix_address, "": self._server.address}
        caller = Caller(addresses, self._server.key, self._imports, self._options.shared_bytes)
        if pool is None:
            call = actor.serve.remote(caller, number)
        else:
            manager = manager_of(pool, _on(self._home))
            call = manager.serve.remote(place, options, caller, number)
        call.future().add_done_callback(partial(self._note_exit, worker))
        worker.limit_waits(self.limits.start + self.limits.item)
        self._starts[worker] = time.monotonic()
        return worker

    def _strategy(self, place: int) -> Any:
        """Return where an actor goes: to the other nodes in turn, if there are any."""
        # Always given: the placement group of a trial would catch the actor otherwise.
        nodes = sorted(node["NodeID"] for node in _ray.nodes() if node["Alive"])
        others = [node for node in nodes if node != self._home]
        if not others:
            return "SPREAD"
        return _on(others[place % len(others)])

    def _note_exit(self, worker: Worker, call: Any) -> None:
        """Close the channel of an actor that has ended; a thread of Ray calls it."""
        error = call.exception()
        inner = getattr(error, "cause", None)  # the manager of shared actors passes it on
        worker.process.end(inner if isinstance(inner, RayActorError) else error)
        self._close_door(worker.number)

    def _payload_for(self, worker: Worker) -> bytes:
        return self.far_payload if isinstance(worker, ActorWorker) else self._payload

    def _close_door(self, number: int) -> None:
        with self._lock:
            door, stream = self._doors.pop(number, None), self._streams.pop(number, None)
        if door is not None:
            shut(door[0])
            door[0].close()
        if stream is not None:  # the thread that has it closes it
            shut(stream)

    def _greet(self, stream: Connection, facts: dict[str, Any]) -> None:
        """Connect a new actor with its channel, in the thread that the stream has."""
        number = int(facts["number"])
        with self._lock:
            door, worker = self._doors.pop(number, (None, None))
            if number == MANAGER:
                self._streams[number] = stream
                return
            if door is not None and not facts["is_near"]:
                self._streams[number] = stream
        if door is None or worker is None:  # it was stopped meanwhile
            stream.close()
            return
        with door, stream:
            door.send(Greeting(facts))
            if any(facts.get(name) != value for name, value in self._facts.items()):
                return  # the pool refuses it
            settings = replace(
                self._settings,
                number=number,
                threads=self._options.threads,
                environment=portable(self._settings.environment),
                script=self._script,
                signals=frozenset(),
                ends_late=False,
            )
            stream.send_bytes(pickle.dumps((self.far_payload, settings)))
            lift_limit(stream)
            if facts["is_near"]:
                door.send(Direct())
                send_descriptor(door, stream.fileno())
                return
            Relay(door, stream, self._buffers, worker.batches, self._receiving).run()

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
            node = message.facts["node"]
            worker.node = "" if node == self._home else node
            self._refuse_others(worker, message.facts)
            if message.facts.get("detour"):
                self._once.warn("detour", message.facts["detour"], LikelyMistake)
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

    def _count_places(self) -> int:
        return len(self.workers) + len(self._starting)

    def _every(self) -> list[Worker]:
        return [*super()._every(), *self._starting]

    def _idle(self) -> tuple[str, str]:
        waiting = len(self._starting)
        return f"no worker is up, and {waiting} of them wait for a node that has room", _NO_ROOM

    def _warn_of_waiting(self) -> None:
        """Warn once if actors have waited for long."""
        long = [w for w in self._starting if time.monotonic() - self._starts[w] > _LONG]
        if long and not self._has_warned:
            self._has_warned = True
            others = "the others make their batches" if self.workers else "no other is up"
            waiting = f"{len(long)} of {len(self._every())} workers have not started"
            warn(f"{waiting} for {_LONG:g} s, and {others}. {_NO_ROOM}", IdleWorkers)

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
        return len(self._open_jobs())

    def _open_jobs(self) -> Counter[int]:
        """Return the jobs of this pass without an answer, and how many workers have each."""
        jobs = Counter(index for tasks in self._tasks.values() for index in tasks)
        return Counter({index: count for index, count in jobs.items() if index not in self._ready})

    def give(self, worker: Worker, job: Any, seed: int, epoch: int) -> None:
        """Send one job."""
        super().give(worker, job, seed, epoch)
        self._seed = seed, epoch
        self._tasks.setdefault(worker, {})[job.index] = _Task(job, time.monotonic())

    def abandon(self) -> None:
        """Leave the jobs of this pass to their workers; their answers are dropped."""
        if any(worker.is_gone and worker.jobs for worker in self._every()):
            self.is_broken = True

    def begin_pass(self) -> None:
        """Count one more pass, without the jobs of the last."""
        super().begin_pass()
        self._ready.clear()
        self._tasks.clear()
        for worker in self._every():
            # It gets jobs of this pass after its answers to those of the last.
            worker.most_jobs = 0 if worker.jobs else self._paces[worker].most_jobs

    def answers(self, deadline: float, seconds: float) -> Iterator[tuple[Worker, Any]]:
        """Wait until a worker answers, ends or starts, and yield the first answer to each job."""
        try:
            for worker, answer in super().answers(deadline, seconds):
                if isinstance(answer, WorkerDied) or self._is_first(worker, answer):
                    yield worker, _name_node(worker, answer)
                else:
                    if isinstance(answer, BatchMessage):
                        worker.open(answer.data)  # and drop it, which frees its memory
                    if answer.report.run == self.passes:
                        yield worker, RepeatedAnswer(answer.report)
        except GeneratorExit:
            raise
        except BaseException:  # an answer may have been lost
            self.is_broken = True
            raise
        for worker in [w for w in self._starting if w.is_up]:
            self._starting.remove(worker)
            self.workers.append(worker)
        self._buffers.settle()
        self._warn_of_waiting()
        self._end_rests()
        self._make_late_ones_again()

    def _is_first(self, worker: Worker, answer: Any) -> bool:
        """Note the time of a batch; return whether it is the first answer to its job."""
        report, pace = answer.report, self._paces[worker]
        self._times.append(report.seconds)
        pace.seconds.append(report.seconds)
        if len(self._times) >= _FEW and len(pace.seconds) == _LAST:
            pace.limit(statistics.median(self._times), self._window())
        if report.run == self.passes:
            task = self._tasks.get(worker, {}).pop(answer.index, None)
            if task is not None and self._options.pool is not None:
                self._waits.append((time.monotonic() - task.since) / self._settings.ahead)
        if report.run == self.passes or not worker.jobs:
            worker.most_jobs = pace.most_jobs
        self.more_in_flight = max((_MORE for w in self.workers if w.most_jobs == 1), default=0)
        if report.run != self.passes or answer.index in self._ready:
            return False
        self._ready.add(answer.index)
        return True

    def _window(self) -> float:
        """Return the seconds in which the workers make as many batches as may be in flight."""
        paces = [self._paces[worker] for worker in self.workers]
        rate = sum(1 / max(min(p.seconds), 1e-6) for p in paces if p.seconds and p.most_jobs)
        return (self._settings.ahead * len(paces) + _MORE) / rate if rate else math.inf

    def _end_rests(self) -> None:
        """Give workers that have rested one job, or at once if no other may have one."""
        now, none = time.monotonic(), not any(worker.most_jobs for worker in self.workers)
        for worker in self.workers:
            pace = self._paces[worker]
            if pace.most_jobs == 0 and (none or pace.until <= now):
                worker.most_jobs = pace.most_jobs = 1

    def _make_late_ones_again(self) -> None:
        """Give each late job to a free worker as well."""
        if not self._options.late or len(self._times) < _FEW:
            return
        usual = statistics.median(self._times)
        if self._waits:  # a job waits for those of other ranks, too
            usual = max(usual, statistics.median(self._waits))
        limit = time.monotonic() - max(_LEAST_LATE, self._options.late * usual)
        alone = {index for index, count in self._open_jobs().items() if count == 1}
        every = (task for tasks in self._tasks.values() for task in tasks.values())
        late = [task for task in every if task.since < limit and task.job.index in alone]
        free = [w for w in self.workers if w.most_jobs and not (w.jobs or w.is_gone)]
        late.sort(key=lambda task: task.since)
        for worker, task in zip(free, late, strict=False):
            self.give(worker, task.job, *self._seed)

    def replace(self, worker: Worker) -> Worker:
        """Replace a dead worker, and return the new one, which has no jobs yet."""
        tasks = self._tasks.pop(worker, {})
        others = self._open_jobs().keys() | self._ready
        worker.jobs = deque(task.job for index, task in tasks.items() if index not in others)
        if not isinstance(worker, ActorWorker):
            return super().replace(worker)
        is_leaving = worker in self._leaving
        self._remove(worker)
        self._end(worker)
        if is_leaving:
            return worker
        fresh = self._start_actor(worker.place, worker.slots)
        self._starting.append(fresh)
        return fresh

    def _may_leave(self, worker: Worker) -> bool:
        return isinstance(worker, ActorWorker)

    def _remove(self, worker: Worker) -> None:
        super()._remove(worker)
        if worker in self._starting:
            self._starting.remove(worker)

    def _end(self, worker: Worker) -> None:
        self._close_door(worker.number)
        self._paces.pop(worker, None)
        self._starts.pop(worker, None)
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
        for worker in self._every():
            if isinstance(worker, ActorWorker) and os.getpid() == self._process:
                worker.process.kill()
        try:
            super().stop()
        finally:
            self._starting = []
            if os.getpid() == self._process:
                self._server.close()
                self._buffers.close()
                for number in [*self._doors, *self._streams]:
                    self._close_door(number)
                self._server.join()
