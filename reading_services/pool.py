"""The worker processes of one service: start, give, wait, stop. Knows nothing of batches' order."""

from __future__ import annotations

import contextlib
import os
import pickle
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import connection
from multiprocessing.context import BaseContext
from typing import Any, NoReturn, TypeAlias

from ..adapters import Limits
from ..core.errors import ItemTimeout, WorkerDied
from ..core.waits import wait_of
from ..realizing import NOWHERE
from ..realizing.standing import read
from ..volumes.stores.joining import Table
from .affinity import Affinity
from .endings import advice, ending
from .fork_server import preload
from .payload import pickled
from .script import WORKER_NAME, not_sent, script_of_this_process
from .transport.arrivals import SlotReader
from .transport.batches import unpack
from .transport.budget import SlotBudget
from .transport.channels import limit_waits, receive_descriptor
from .transport.mapping import Mapping
from .transport.messages import STOP, DoJob, Failed, NewSlot, Notes, Ready, RetireSlot
from .work import Doing
from .worker import SETTINGS, Settings, run_worker

# What every worker imports anyway.
PRELOAD = [
    "voxpipe.reading_services.worker",
    "voxpipe.volumes.formats.nifti",
    "voxpipe.spatial.native",
    "nibabel",
]
# Where pipes are sent and not instructions; then "__main__" too, multiprocessing's own default.
PRELOAD_TORCH = ["torch", "voxpipe.datapipes.iter"]
# A worker that lives takes the word to stop at once.
_STOP_SECONDS = 0.1


At: TypeAlias = "Callable[[int, int, Any], Doing]"
"""What a worker does, of the step and item that it notes and its job."""


class Worker:
    """One process, its channel, and what it is busy with."""

    def __init__(
        self,
        number: int,
        process: Any,
        channel: connection.Connection,
        slots: SlotReader,
        at: At,
    ) -> None:
        self.number = number
        self.process = process
        self.channel = channel
        self.jobs: deque[Any] = deque()
        self.answers: deque[Any] = deque()
        self.given = 0
        self.slots = slots
        self._at = at
        self._notes: Any = None
        self.is_up = False
        """Whether it has started."""
        self.is_gone = False
        """Whether it was found dead with nothing to do, which is an error once it gets a job."""
        self.patience = 0.0
        """Seconds that a message to it may wait."""

    def limit_waits(self, seconds: float) -> None:
        """Let messages to it and from it wait so long."""
        self.patience = seconds
        limit_waits(self.channel, seconds)

    def open(self, data: bytes) -> Any:
        """Return a batch that this worker made."""
        return unpack(data, self.slots)

    def show_notes(self, fd: int, size: int) -> None:
        """Look from now on at the memory in which it notes what it is at; closes ``fd``."""
        try:
            self._notes = Mapping(fd, size).bytes()
        finally:
            os.close(fd)

    def busy_with(self) -> Doing:
        """Return what it is doing, for messages."""
        if not self.jobs:
            return Doing("nothing to do")
        step, item = (NOWHERE, NOWHERE) if self._notes is None else read(self._notes)
        return self._at(step, item, self.jobs[0])


class WorkerPool:
    """Processes that all run the same thing.

    Parameters
    ----------
    payloads
        What each worker runs, pickled.
    context
        A multiprocessing context.
    limits
        How long waits may take.
    torch
        Whether what they run needs torch.
    threads
        Patches that each worker realizes at once.
    imports
        Further modules that a fork server is to load before it starts workers.
    budget
        Bytes of shared memory for batches, over all workers.
    ahead
        Jobs that a worker may have at once.
    cache_bytes
        Decoded chunks that each worker keeps, in bytes.
    ahead_bytes
        What each fetches for later patches and keeps, in bytes; None leaves it at what is usual.
    joinings
        Which ranges become one request, by key.
    at
        Says what a worker does.
    """

    def __init__(
        self,
        payloads: Sequence[bytes],
        context: BaseContext,
        limits: Limits,
        *,
        torch: bool,
        threads: int = 1,
        imports: Sequence[str] = (),
        budget: SlotBudget,
        ahead: int,
        cache_bytes: int = 0,
        ahead_bytes: int | None = None,
        joinings: Table | None = None,
        at: At,
    ) -> None:
        self.limits = limits
        self._at = at
        self._budget = budget
        self._ahead = ahead
        self._share = budget.share(len(payloads))
        self.broken = False
        self.affinity = Affinity()
        self.workers: list[Worker] = []
        own = script_of_this_process()
        self._has_script = bool(own)
        if context.get_start_method() == "forkserver":
            first = [*(["__main__"] if own else []), *PRELOAD_TORCH] if torch else []
            preload(context, [*first, *PRELOAD, *imports])
        environment = {k: v for k, v in os.environ.items() if k.startswith(SETTINGS)}
        script = {} if torch else own
        # Asked for no shared memory, a worker says nothing about having none.
        slot_bytes = self._share if budget.limit else None
        settings = Settings(
            torch,
            threads,
            script,
            environment,
            slot_bytes,
            cache_bytes,
            dict(joinings or {}),
            ahead,
            len(payloads),
            ahead_bytes,
        )
        try:
            for number, payload in enumerate(payloads):
                self.workers.append(self._start(number, payload, context, settings))
        except BaseException:
            self.stop()
            raise

    def _start(
        self, number: int, payload: bytes, context: BaseContext, settings: Settings
    ) -> Worker:
        ours, theirs = context.Pipe(duplex=True)
        # A forked child holds our ends of all channels so far; others are handed nothing.
        forked = context.get_start_method() == "fork"
        inherited = [*(w.channel for w in self.workers), ours] if forked else []
        process = context.Process(  # type: ignore[attr-defined]
            target=run_worker,
            args=(theirs, inherited, payload, settings),
            name=f"{WORKER_NAME}-{number}",
            daemon=True,
        )
        try:
            with contextlib.nullcontext() if settings.torch and self._has_script else not_sent():
                process.start()
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        slots = SlotReader(self._budget, self._share, self._ahead)
        worker = Worker(number, process, ours, slots, self._at)
        # It takes no message before it has started, and a large one waits until it is taken.
        worker.limit_waits(self.limits.start + self.limits.item)
        return worker

    def in_flight(self) -> int:
        """Return the number of jobs that were given and not answered."""
        return sum(len(worker.jobs) for worker in self.workers)

    def idlest(self) -> Worker:
        """Return the worker with the fewest jobs, the first of them."""
        return min(self.workers, key=lambda worker: len(worker.jobs))

    def give(self, worker: Worker, job: Any, seed: int, epoch: int) -> None:
        """Send one job, and which slots are free again.

        Raises
        ------
        WorkerDied
            If it died while it had nothing to do.
        ItemTimeout
            If it takes no messages.
        NotPicklable
            If the job cannot be sent.
        """
        if worker.is_gone:
            self._died(worker)
        index = getattr(job, "index", job)
        message = DoJob(index, pickled(job), seed, epoch, tuple(worker.slots.take_freed()))
        worker.jobs.append(job)
        worker.given += 1
        self.affinity.given(job, worker)
        # A worker that is gone is noticed where its answers are taken: some may be left.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            try:
                worker.channel.send(message)
            except BlockingIOError:
                self._stuck(worker)

    def is_up(self) -> bool:
        """Whether every worker has started."""
        return all(worker.is_up or worker.is_gone for worker in self.workers)

    def is_well(self) -> bool:
        """Whether every worker lives, and none is left in the middle of something."""
        return not self.broken and all(worker.process.is_alive() for worker in self.workers)

    @staticmethod
    def deadline(seconds: float) -> float:
        """Return the moment ``seconds`` from now."""
        return time.monotonic() + seconds

    def answers(self, deadline: float, seconds: float) -> Iterator[tuple[Worker, Any]]:
        """Wait until a worker answers or dies, and yield what arrived.

        Raises
        ------
        ItemTimeout
            At the deadline; ``seconds`` is what the message says.
        WorkerDied
            As soon as a worker with jobs is gone, after the answers that it left. One without is
            missed when it is given a job.
        """
        by_handle: dict[Any, Worker] = {}
        for worker in self.workers:
            if worker.is_gone:
                continue
            by_handle[worker.channel] = worker
            by_handle[worker.process.sentinel] = worker
        ready = connection.wait(list(by_handle), wait_of(deadline - time.monotonic()))
        if not ready:
            self._timed_out(seconds)
        for worker in dict.fromkeys(by_handle[handle] for handle in ready):
            yield from ((worker, answer) for answer in self._received(worker))

    def _received(self, worker: Worker) -> Iterator[Any]:
        """Yield what lies in a worker's channel; raise if it died with jobs, else note it."""
        try:
            while worker.channel.poll():
                message = worker.channel.recv()
                if isinstance(message, Ready):
                    worker.is_up = True
                    worker.limit_waits(self.limits.item)
                elif isinstance(message, Notes):
                    worker.show_notes(receive_descriptor(worker.channel), message.size)
                elif isinstance(message, NewSlot):
                    fd = receive_descriptor(worker.channel)
                    worker.slots.add(message.number, fd, message.size)
                elif isinstance(message, RetireSlot):
                    worker.slots.retire(message.number)
                else:
                    worker.jobs.popleft()
                    yield message
        except (EOFError, ConnectionResetError):
            self._ended(worker)
            return
        except BlockingIOError:
            self._stuck(worker)
        if not worker.process.is_alive() and not worker.channel.poll():
            self._ended(worker)

    def _ended(self, worker: Worker) -> None:
        if worker.jobs:
            self._died(worker)
        worker.is_gone = True

    def _died(self, worker: Worker) -> NoReturn:
        self.broken = True
        worker.process.join(wait_of(self.limits.stop))
        doing = worker.busy_with()
        raise WorkerDied(
            f"worker {worker.number} (pid {worker.process.pid}) "
            f"{ending(worker.process.exitcode)} while it had {doing.what}",
            do=advice(worker.process.exitcode, worker.is_up),
        ).at(doing.origin)

    def _stuck(self, worker: Worker) -> NoReturn:
        self.broken = True
        doing = worker.busy_with()
        raise ItemTimeout(
            f"worker {worker.number} (pid {worker.process.pid}) took no message for "
            f"{worker.patience:g} s; it had {doing.what}",
            do="Was it stopped by a debugger or a signal?",
        ).at(doing.origin)

    def _timed_out(self, seconds: float) -> NoReturn:
        self.broken = True
        busy = [(worker, worker.busy_with()) for worker in self.workers if worker.jobs]
        told = "; ".join(
            f"worker {w.number} (pid {w.process.pid}) is at {doing}" for w, doing in busy
        )
        late = ItemTimeout(
            f"no batch for {seconds:g} s: {told}",
            do="Raise Timeout(item=...) if a batch may take longer; else look at this pipe and "
            "these files.",
        )
        for _, doing in busy:
            late.at(doing.origin)
        raise late

    def stop(self) -> None:
        """Stop every process, by asking and then by killing, and close every channel."""
        self.broken = True
        workers, self.workers = self.workers, []
        for worker in workers:
            with contextlib.suppress(OSError, ValueError):
                # One that takes no messages is not asked twice: it is killed below.
                worker.limit_waits(_STOP_SECONDS)
                worker.channel.send_bytes(STOP)
        end = time.monotonic() + self.limits.stop / 2
        for worker in workers:
            worker.process.join(wait_of(end - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
        end += self.limits.stop / 2
        for worker in workers:
            worker.channel.close()
            worker.slots.close()
            worker.process.join(wait_of(end - time.monotonic()))
            # A process in an uninterruptible read (a dead network mount) outlives SIGKILL.
            if worker.process.exitcode is not None:
                worker.process.close()


class WorkerTraceback(Exception):
    """The traceback of a worker, shown as the cause of the error that it raised."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


def raise_from_worker(answer: Failed) -> NoReturn:
    """Raise a worker's error as itself, with the worker's traceback as its cause."""
    error = pickle.loads(answer.error) if answer.error else None
    if not isinstance(error, Exception):
        # It cannot be pickled; or it is SystemExit or KeyboardInterrupt, which would end
        # the consumer's process without a word.
        error = WorkerDied(
            f"a worker raised {answer.what}",
            do="The worker's traceback is the cause of this error (__cause__).",
        )
    try:
        raise error from WorkerTraceback(answer.text)
    finally:
        del error  # held by this frame, which its traceback holds, it would keep all frames alive
