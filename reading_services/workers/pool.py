"""The worker processes of one service: start, send jobs, wait, stop. Epochs order the batches.

A forked child holds the same channels, but never uses or stops its parent's workers.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from multiprocessing import connection, current_process, forkserver
from multiprocessing.context import BaseContext
from typing import Any, NamedTuple, NoReturn, Protocol

from ...batching.job import Job
from ...core.context import RUNNING_PASS
from ...core.errors import IteratorInvalidated, WorkerDied
from ...core.locks import timeout_or_none
from ..memory_budget import SlotBudget
from ..transport.messages import STOP, Deal, DoJob, NewSlot, Notes, Ready, RetireSlot, Took
from ..transport.shared_memory import has_message, receive_memory
from ..transport.slot_reader import SlotReader
from ..work import ReplicatedWork, Work, WorkerStatus, item_timeout
from .payload import Payload, pickle_job
from .script import (
    SERVER,
    WORKER_NAME,
    StartNote,
    preload,
    preparing,
    script_of_this_process,
    signals_of_parent,
    start_server,
    warn_of_changes,
)
from .worker import WorkerSettings, run_worker
from .worker_process import Worker, failed_start, pause_collector, start_tracker, without_signals

# Affinity of batches to workers.
#
# Each worker keeps the chunks that it decoded. If one worker has had all cases of a batch before,
# it gets the batch, so that no other worker decodes the same chunks. The content and order of
# batches do not depend on it. Idle workers come first, unless they get the next batches anyway.

# Limit of the cases to remember: workers have dropped the chunks of older cases, or keep all.
_MOST_CASES = 16 * 1024


def has_room(worker: Worker, limit: int) -> bool:
    """Whether a worker may have one more of ``limit`` jobs."""
    return len(worker.jobs) < min(limit, worker.most_jobs)


class Pool(Protocol):
    """The workers of a service, as an epoch of planned batches uses them.

    Workers may come and go: only those in ``workers`` get jobs. Each is a
    :class:`~.worker_process.Worker`, or has its ``number``, ``jobs``, ``is_gone``, ``most_jobs``,
    ``node``, ``open()``, ``busy_with()``, ``overdue()``, ``death()`` and ``failed_to_start()``.
    """

    workers: list[Worker]
    affinity: Affinity
    passes: int  # passes that were begun
    is_broken: bool  # whether the next pass needs another pool
    more_in_flight: int  # batches beyond the limits of the workers, while one is slow

    def begin_pass(self) -> None:
        """Count one more pass; its jobs follow."""

    def is_up(self) -> bool:
        """Whether every worker has started that a pass waits for."""

    def is_well(self, payload: bytes | None = None) -> bool:
        """Whether the pool can run another pass, of ``payload`` (None: any)."""

    def in_flight(self) -> int:
        """Return the number of jobs that were sent and not answered."""

    def give(self, worker: Worker, job: Any, seed: int, epoch: int) -> None:
        """Send one job, and the numbers of freed slots."""

    def send(self, worker: Worker, message: DoJob | Deal) -> None:
        """Send a job or a dealt item; ItemTimeout if the worker receives no messages."""

    def answers(self, deadline: float, seconds: float) -> Iterator[tuple[Worker, Any]]:
        """Wait until a worker answers or dies, and yield the first answer to each job.

        Further answers to a job are yielded as a :class:`~..transport.messages.RepeatedAnswer`.
        """

    def replace(self, worker: Worker) -> Worker:
        """Start a worker in place of a dead one; its ``jobs`` are then those to make again."""

    def tell_free_slots(self) -> None:
        """Send freed slots to busy workers."""

    def abandon(self) -> None:
        """End a pass before all of its jobs have an answer."""

    def wake(self) -> None:
        """End the wait for answers in another thread, or else the next wait."""

    def scale(self, count: int) -> None:
        """Have ``count`` workers from now on."""

    def stop(self) -> None:
        """Stop all workers."""


class Affinity:
    """Memory of the worker that had each case first. Lives as long as the workers."""

    def __init__(self) -> None:
        self._owners: OrderedDict[int, int] = OrderedDict()
        self._last_given: dict[int, int] = {}
        self._count = 0

    def choose(self, job: Any, workers: Sequence[Worker], limit: int, coming: int) -> Worker:
        """Return the worker for a job, among those that may have one more of ``limit`` jobs.

        ``coming`` further jobs can follow, now or when the consumer takes the ready batches.
        """
        free = [worker for worker in workers if has_room(worker, limit)]
        cases = cases_of(job)
        votes = Counter(self._owners[case] for case in cases if case in self._owners)

        def rank(worker: Worker) -> tuple[int, int, int]:
            """Prefer fewest jobs, then most cases in common, then the longest without a job."""
            score = -votes[worker.number]
            return len(worker.jobs), score, self._last_given.get(worker.number, -1)

        best = min(free, key=rank)
        owner = next((w for w in free if cases and votes[w.number] == len(cases)), None)
        if owner is None or owner is best:
            return best
        waiting = sum(not worker.jobs for worker in free)
        return owner if waiting <= coming else best

    def remember(self, job: Any, worker: Worker) -> None:
        """Record the worker of a job; the first worker of a case keeps most of its chunks."""
        self._count += 1
        self._last_given[worker.number] = self._count
        for case in cases_of(job):
            self._owners.setdefault(case, worker.number)
            self._owners.move_to_end(case)
        while len(self._owners) > _MOST_CASES:
            self._owners.popitem(last=False)

    def forget(self, number: int) -> None:
        """Forget the cases of a dead worker, whose chunks are lost."""
        for case in [case for case, owner in self._owners.items() if owner == number]:
            del self._owners[case]
        self._last_given.pop(number, None)


def cases_of(job: Any) -> list[int]:
    """Return the index of each item's case; items without a case have none."""
    items = job.items if isinstance(job, Job) else ()
    identities = (getattr(item, "identity", ()) for item in items)
    return [identity[0] for identity in identities if identity]


# Modules that every worker imports.
PRELOAD = [
    "voxpipe.reading_services.workers.worker",
    "voxpipe.volumes",
    "voxpipe.spatial.resampling.native_resampler",
    "nibabel",
]
# Modules for workers that get pipes and not instructions.
PRELOAD_TORCH = ["torch", "voxpipe.datapipes.iter"]
# A live worker receives the stop message at once.
_STOP_SECONDS = 0.1
_ELSE = "may take longer; else look at this pipe and these files."


class PoolSettings(NamedTuple):
    """Settings of a pool."""

    work: Work
    payload: Payload
    workers: int
    context: BaseContext
    budget: SlotBudget
    ahead: int  # batches in flight of each worker
    imports: Sequence[str]  # modules that the volumes need


class WorkerPool:
    """Worker processes with the same payload."""

    has_actors = False
    """Whether workers may be on other nodes."""

    def __init__(self, settings: PoolSettings) -> None:
        work, payload, count, context, budget, ahead, imports = settings
        self.limits = work.limits
        self.is_broken = False
        self.passes = 0  # passes that were begun
        self.has_shares = isinstance(work, ReplicatedWork)  # the share of each worker is fixed
        self.more_in_flight = 0  # batches beyond the limits of the workers, while one is slow
        self._process = os.getpid()
        self.affinity = Affinity()
        self.workers: list[Worker] = []
        self._poll = work.limits.poll  # seconds between two looks at the workers; None for none
        self._woken, self._wake = context.Pipe(duplex=False)
        self._payload = payload.data
        self._context = context
        self._budget = budget
        self._at = work.at
        torch = isinstance(work, ReplicatedWork) or work.recipe is None
        own = script_of_this_process()
        if vars(current_process()).get("_config", {}).get("daemon"):
            raise WorkerDied(
                f"{current_process().name} is a daemon process (as a worker of torch's DataLoader "
                "or of a multiprocessing.Pool is), which may not start workers of its own",
                do="Use ThreadReadingService(num_threads) or ⟦num_workers=0⟧ in it.",
            )
        self._modules = payload.modules if torch else ()
        if context.get_start_method() == "forkserver":
            preload(context, [*(PRELOAD_TORCH if torch else []), *PRELOAD, *imports])
        self._share = budget.share(count)
        # A worker that receives pipes has imported the script.
        self._sends_script = torch and bool(own)
        self._settings = WorkerSettings(
            torch,
            work.threads,
            {} if torch else own,
            {name: value for name, value in os.environ.items() if name != SERVER},
            # With a limit of 0 the workers do not warn about missing shared memory.
            self._share if budget.limit else None,
            work.cache_bytes,
            dict(work.coalesce_policies),
            ahead,
            count,
            work.ahead_bytes,
            ends_late=context.get_start_method() != "fork",
        )
        self._leaving: list[Worker] = []  # get no further jobs, and end after those that they have
        self._count = 0  # workers that were started
        try:
            for _ in range(count):
                self._add()
        except BaseException:
            self.stop()
            raise

    def _add(self) -> None:
        """Start one more worker."""
        self.workers.append(self._start(self._count))
        self._count += 1

    def _start(self, number: int, before: SlotReader | None = None) -> Worker:
        """Start a worker; batches in the slots of its predecessor ``before`` use its share."""
        try:
            ours, theirs = self._context.Pipe(duplex=True)
        except OSError as error:
            raise failed_start(error, None) from error  # type: ignore[misc]  # never None
        # A forked child inherits our ends of all channels so far, and closes them.
        method = self._context.get_start_method()
        is_fork = method == "fork"
        channels = [*(other.channel for other in self.workers), ours] if is_fork else []
        settings = replace(self._settings, number=number, signals=signals_of_parent())
        process = self._context.Process(  # type: ignore[attr-defined]
            target=run_worker,
            args=(theirs, channels, self._payload, settings),
            name=f"{WORKER_NAME}-{number}",
            daemon=True,
        )
        if not is_fork:  # before the note: a kill before the server runs would leave its folder
            start_tracker()
        note = None if is_fork else StartNote(self.limits.start)
        server = forkserver.ensure_running
        if self._settings.torch and note is not None:
            warn_of_changes(self._modules, method)
            server = partial(start_server, self._modules, note)
        script = preparing(hides_script=not self._sends_script, note=note)
        try:
            with pause_collector(), script, without_signals(method, server):
                process.start()
            # multiprocessing ends daemons by SIGTERM, which workers ignore.
            process._popen.terminate = process._popen.kill
        except BaseException as error:
            ours.close()
            if (cause := failed_start(error, note)) is None:
                raise
            raise cause from error
        finally:
            theirs.close()
        slots = SlotReader(self._budget, self._share, self._settings.ahead, before=before)
        worker = Worker(number, process, ours, slots, self._at, note=note)
        # It receives no message before it has started, and the channel holds no large one.
        worker.limit_waits(self.limits.start + self.limits.item)
        return worker

    def _every(self) -> list[Worker]:
        """Return all workers, also those that get no jobs."""
        return [*self.workers, *self._leaving]

    def scale(self, count: int) -> None:
        """Have ``count`` workers from now on, also within a pass; batches stay the same.

        Surplus workers finish their jobs, and end.
        """
        staff = [worker for worker in self._every() if worker not in self._leaving]
        for _ in range(len(staff), count):
            self._add()
        first = sorted(filter(self._may_leave, staff), key=lambda w: (w.is_up, len(w.jobs)))
        for worker in first[: max(0, len(staff) - count)]:
            self._remove(worker)
            self._leaving.append(worker)
        self._end_leaving()

    def _may_leave(self, worker: Worker) -> bool:
        return True

    def _end_leaving(self) -> None:
        """End the workers that leave and have no jobs any more."""
        for worker in [w for w in self._leaving if not w.jobs]:
            self._remove(worker)
            self._end(worker)

    def _remove(self, worker: Worker) -> None:
        """Give a worker no further jobs."""
        for group in (self.workers, self._leaving):
            if worker in group:
                group.remove(worker)
        self.affinity.forget(worker.number)

    def _end(self, worker: Worker) -> None:
        worker.is_gone = True
        worker.release()
        worker.process.kill()  # it may have closed only its channel
        _reap(worker, time.monotonic() + self.limits.stop)

    def _idle(self) -> tuple[str, str]:
        """Return why no worker has a job, and the cure."""
        return "no worker has a job", f"Raise Timeout(item=...) if planning one {_ELSE}"

    def replace(self, worker: Worker) -> Worker:
        """Replace a dead worker, and return the new one, which has no jobs yet.

        Batches of the dead worker that are in use count in the share of the new one.
        """
        is_leaving = worker in self._leaving
        place = 0 if is_leaving else self.workers.index(worker)
        self._end(worker)
        # First remove the closed worker: the start of the new one may fail.
        self._remove(worker)
        if is_leaving:
            return worker
        fresh = self._start(worker.number, worker.slots)
        self.workers.insert(place, fresh)
        return fresh

    def update(self, payload: bytes) -> None:
        """Send objects of the user that changed since the last epoch with the next jobs."""
        for worker in self._every():
            worker.is_outdated |= payload != self._payload
        self._payload = payload

    def _payload_for(self, worker: Worker) -> bytes:
        return self._payload

    def in_flight(self) -> int:
        """Return the number of jobs that were sent and not answered."""
        return sum(len(worker.jobs) for worker in self._every())

    def abandon(self) -> None:
        """End a pass: workers that are still busy with it stop too."""
        if self.in_flight():
            self.is_broken = True

    def give(self, worker: Worker, job: Any, seed: int, epoch: int) -> None:
        """Send one job, and the numbers of freed slots."""
        self._refuse_child()
        index = getattr(job, "index", job)
        slots = tuple(worker.slots.take_freed()), tuple(worker.slots.take_given_up())
        payload = self._payload_for(worker) if worker.is_outdated else b""
        message = DoJob(index, pickle_job(job), seed, epoch, *slots, self.passes, payload)
        worker.is_outdated = False
        worker.jobs.append(job)
        self.affinity.remember(job, worker)
        self.send(worker, message)

    def tell_free_slots(self) -> None:
        """Send freed slots to busy workers, which would otherwise allocate one more each."""
        for worker in self.workers:
            if worker.jobs and (numbers := worker.slots.take_freed()):
                given_up = tuple(worker.slots.take_given_up())
                self.send(worker, DoJob(-1, b"", 0, 0, tuple(numbers), given_up))

    def send(self, worker: Worker, message: DoJob | Deal) -> None:
        """Send a job or a dealt item; ItemTimeout if the worker receives no messages."""
        # answers() notices a dead worker, after its last answers.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            try:
                worker.channel.send(message)
            except BlockingIOError:
                self._raise_stuck(worker)

    def begin_pass(self) -> None:
        """Count one more pass; its jobs follow."""
        self.passes += 1

    def is_up(self) -> bool:
        """Whether every worker has started."""
        return all(worker.is_up or worker.is_gone for worker in self.workers)

    def is_well(self, payload: bytes | None = None) -> bool:
        """Whether all workers are alive and idle, and run ``payload`` (None: any)."""
        if self.is_broken or os.getpid() != self._process or payload not in (None, self._payload):
            return False
        return all(worker.process.is_alive() for worker in self.workers)

    def _refuse_child(self) -> None:
        if os.getpid() != self._process:
            msg = "this iterator was begun before a fork, and its workers answer the other process"
            raise IteratorInvalidated(msg, do="Iterate the loader anew in this one.")

    def answers(self, deadline: float, seconds: float) -> Iterator[tuple[Worker, Any]]:
        """Wait until a worker answers or dies, and yield the answers.

        A dead worker with jobs yields a ``WorkerDied`` last; the next job finds other dead ones.
        """
        self._refuse_child()
        every = [worker for worker in self._every() if not worker.is_gone]
        by_handle = {handle: worker for worker in every for handle in worker.handles()}
        rest, poll = deadline - time.monotonic(), self._poll
        handles = [self._woken, *by_handle]
        ready = connection.wait(handles, timeout_or_none(rest if poll is None else min(rest, poll)))
        if self._woken in ready:
            self._woken.recv_bytes()
            return
        for worker in every if self.limits.poll is not None else ():
            if (doing := worker.overdue(time.monotonic())) is not None:
                event = f"{worker} has been at {doing.work} for more than {doing.seconds:g} s"
                self._refuse(event, f"Give Timeout(idle=... or at=...) more if this {_ELSE}", doing)
        if not ready:
            if time.monotonic() < deadline:
                return
            busy = {worker: worker.busy_with() for worker in every if worker.jobs}
            where = "; ".join(f"{worker} is at {doing}" for worker, doing in busy.items())
            where, do = (
                (where, f"Raise Timeout(item=...) if a batch {_ELSE}") if busy else self._idle()
            )
            self._refuse(f"no batch for {seconds:g} s: {where}", do, *busy.values())
        for worker in dict.fromkeys(by_handle[handle] for handle in ready):
            ends = worker.process.sentinel in ready
            yield from ((worker, answer) for answer in self._receive(worker, ends=ends))
        self._end_leaving()

    def _receive(self, worker: Worker, *, ends: bool) -> Iterator[Any]:
        """Yield the answers in a worker's channel; then its death if it ``ends`` with jobs."""
        try:
            while has_message(worker.channel):
                message = worker.channel.recv()
                if not self._note(worker, message):
                    if not isinstance(message, Took):
                        worker.jobs.popleft()
                    yield message
        except BlockingIOError:
            self._raise_stuck(worker)
        except (EOFError, OSError):  # it was killed between two messages or within one
            yield from self._note_end(worker)
            return
        if ends and not has_message(worker.channel):
            yield from self._note_end(worker)

    def _note(self, worker: Worker, message: Any) -> bool:
        """Take note of a message, and return True; return False for an answer."""
        if isinstance(message, Ready):
            worker.is_up = True
            if worker.note is not None:
                worker.note.take()
            worker.limit_waits(self.limits.item)
        elif isinstance(message, Notes):
            worker.notes = receive_memory(worker.channel, message.size).bytes()
            RUNNING_PASS.follow(worker.busy_with)
        elif isinstance(message, NewSlot):
            worker.slots.add(message.number, receive_memory(worker.channel, message.size))
        elif isinstance(message, RetireSlot):
            worker.slots.retire(message.number)
        else:
            return False
        return True

    def _note_end(self, worker: Worker) -> Iterator[WorkerDied]:
        worker.is_gone = True
        if worker.jobs:
            yield worker.death(self.limits.stop)

    def _raise_stuck(self, worker: Worker) -> NoReturn:
        doing = worker.busy_with()
        event = f"{worker} took no message for {worker.patience:g} s; it had {doing.work}"
        self._refuse(event, "Was it stopped by a debugger or a signal?", doing)

    def _refuse(self, event: str, do: str, *at: WorkerStatus) -> NoReturn:
        self.is_broken = True
        passes = dict.fromkeys(doing.whole_pass for doing in at if doing.whole_pass)
        late = item_timeout(event, do, ", ".join(passes))
        for doing in at:
            late.at(doing.origin)
        raise late

    def wake(self) -> None:
        """End the wait for answers in another thread, or else the next wait."""
        with contextlib.suppress(OSError):  # it is stopped
            self._wake.send_bytes(b"")

    def stop(self) -> None:
        """Stop every process, by a message and then by a kill, and close every channel.

        A forked child only closes its copies of the channels.
        """
        self.is_broken = True
        workers, self.workers, self._leaving = self._every(), [], []
        if os.getpid() != self._process:
            for worker in workers:
                worker.release()
            self._wake.close()
            self._woken.close()
            return
        for worker in workers:
            with contextlib.suppress(OSError, ValueError):
                # A worker that receives no messages is killed below.
                worker.limit_waits(_STOP_SECONDS)
                worker.channel.send_bytes(STOP)
        half = self.limits.stop / 2
        end = time.monotonic() + half
        # The stack runs last in, first out, and to its end despite an error or Ctrl-C.
        with contextlib.ExitStack() as stack:
            stack.callback(self._wake.close)
            stack.callback(self._woken.close)
            for worker in reversed(workers):
                stack.callback(_reap, worker, end + half)
                stack.callback(worker.release)
            for worker in reversed(workers):
                stack.callback(_kill, worker, end)


def _kill(worker: Worker, end: float) -> None:
    try:
        worker.process.join(timeout_or_none(end - time.monotonic()))
    finally:
        if worker.process.is_alive():
            worker.process.kill()


def _reap(worker: Worker, end: float) -> None:
    worker.process.join(timeout_or_none(end - time.monotonic()))
    # A process in an uninterruptible read (a dead network mount) outlives SIGKILL.
    if worker.process.exitcode is not None:
        worker.process.close()
