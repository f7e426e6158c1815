"""The consumer's side of one worker process, and helpers to start it."""

from __future__ import annotations

import contextlib
import gc
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from multiprocessing import connection, forkserver, resource_tracker
from types import FrameType
from typing import Any

from ...batching.job import NOTE_BYTES, NOWHERE, step_noted_in
from ...core.context import pass_noted_in
from ...core.errors import WorkerDied
from ...core.locks import timeout_or_none
from ..transport.messages import unpack
from ..transport.shared_memory import limit_waits
from ..transport.slot_reader import Arrival, SlotReader
from ..work import WorkerStatus
from .script import SIGNALS, UNGUARDED_EXIT, StartNote, signals_of_parent
from .worker import DEAF, ORPHAN_EXIT

_CRASHES = frozenset(
    -getattr(signal, name)
    for name in ("SIGSEGV", "SIGABRT", "SIGFPE", "SIGILL", "SIGBUS")
    if hasattr(signal, name)
)

_GUARD = 'Put the code that iterates under if __name__ == "__main__": workers import the script.'


_ENDINGS = {
    None: "closed its channel",
    UNGUARDED_EXIT: "imported the script, which began the loop again",
    ORPHAN_EXIT: "found its channel closed and ended",
    DEAF: "could take no message and ended",
}
_ADVICE = {
    -getattr(signal, "SIGKILL", 0): (
        "Unless a user killed it, the memory ran out: try fewer workers or smaller batches."
    ),
    -getattr(signal, "SIGBUS", 0): "A file that it had mapped became shorter, or its disk failed.",
    UNGUARDED_EXIT: _GUARD,
}


def advice(exitcode: int | None, was_up: bool) -> str:
    """Return the fix line for a worker that ended with ``exitcode``."""
    if exitcode is not None and exitcode in _ADVICE:
        return _ADVICE[exitcode]
    if not was_up:
        return f"{_GUARD} Its own message is above."
    if exitcode == DEAF:
        return "Its own message is above; for lack of memory, try fewer workers."
    if exitcode in _CRASHES:
        return "Compiled code crashed: see where by python -X faulthandler and ⟦num_workers=0⟧."
    return (
        "A function or library that it called ended the process by itself (os._exit): run "
        "with ⟦num_workers=0⟧ to see where."
    )


def not_started(which: str, seconds: float, stack: str) -> WorkerDied:
    """Return the error for a process that hung while it started."""
    return WorkerDied(
        f"{which} did not start within {seconds:g} s; its import waits at\n  {stack}",
        do="Workers import the script: put lines that wait (a port, a lock, other processes) under "
        'if __name__ == "__main__":. Raise Timeout(start=...) if importing takes longer.',
    )


def failed_start(error: BaseException, note: StartNote | None) -> WorkerDied | None:
    """Return the error for a process that could not be started; None if ``error`` is another."""
    if note is not None and isinstance(error, (EOFError, OSError)) and (stack := note.take()):
        return not_started("the fork server of the workers", note.limit, stack)
    if not isinstance(error, (EOFError, OSError, RuntimeError)):
        return None
    limits = (
        "Is there memory for another process, and may there be one more (ulimit -u)? May this "
        "process open more files (ulimit -n)? Is TMPDIR a short path? Or use fewer workers."
    )
    return WorkerDied(f"no worker could be started: {type(error).__name__}: {error}", do=limits)


@dataclass(eq=False)
class Worker:
    """A worker process, its channel, and its jobs."""

    number: int
    process: Any
    channel: connection.Connection
    slots: SlotReader
    _at: Callable[[int, int, Any], WorkerStatus]  # status for a noted step, item and job
    jobs: deque[Any] = field(default_factory=deque)
    notes: Any = None  # shared memory in which it notes its current step
    _standing: tuple[tuple[int, int, int], float] | None = None
    is_up: bool = False  # whether it has started
    is_gone: bool = False  # whether it was found dead
    note: StartNote | None = None  # file for its stack if it does not start in time
    is_outdated: bool = False  # whether objects in its payload changed here after it got them
    node: str = ""  # identifies its machine in a cluster; empty for this one
    most_jobs: int = sys.maxsize  # a slow worker of a cluster has one at a time
    patience: float = 0.0  # seconds that a message to it may wait

    def __str__(self) -> str:
        return f"worker {self.number} (pid {self.process.pid})"

    def handles(self) -> list[Any]:
        """Return the handles that are ready when it answers or ends."""
        return [self.channel, self.process.sentinel]

    def limit_waits(self, seconds: float) -> None:
        """Set the timeout of messages to it and from it."""
        self.patience = seconds
        limit_waits(self.channel, seconds)

    def open(self, data: Any) -> tuple[Any, int]:
        """Return a batch that this worker made, and its size in bytes."""
        arrival = Arrival(self.slots)
        batch = unpack(data, arrival)
        return batch, len(data) + arrival.bytes

    def busy_with(self) -> WorkerStatus:
        """Return its current status, for messages."""
        if not self.jobs:
            return WorkerStatus("nothing to do")
        if self.notes is None:
            return self._at(NOWHERE, NOWHERE, self.jobs[0])
        return self._doing(*step_noted_in(self.notes))

    def _doing(self, step: int, item: int) -> WorkerStatus:
        running = pass_noted_in(self.notes[NOTE_BYTES:])
        return replace(self._at(step, item, self.jobs[0]), whole_pass=running)

    def overdue(self, now: float) -> WorkerStatus | None:
        """Return its status if one step has exceeded its limit; called at intervals."""
        if not self.jobs or self.notes is None:
            self._standing = None
            return None
        step, item = step_noted_in(self.notes)
        at = (id(self.jobs[0]), step, item)
        if self._standing is None or self._standing[0] != at:
            self._standing = at, now
            return None
        doing = self._doing(step, item)
        return doing if now - self._standing[1] > doing.seconds else None

    def death(self, seconds: float) -> WorkerDied:
        """Return the error with its exit and its last status."""
        self.process.join(timeout_or_none(seconds))
        doing = self.busy_with()
        if self.note is not None and (stack := self.note.take()):
            return not_started(str(self), self.note.limit, stack)
        code = self.process.exitcode
        end = _ENDINGS.get(code, f"ended with exit status {code}")
        if code is not None and code < 0:
            end = f"was killed by {signal.Signals(-code).name}"
        error = WorkerDied(f"{self} {end} while it had {doing.work}", do=advice(code, self.is_up))
        error.at(doing.origin)
        return error

    def failed_to_start(self) -> bool:
        """Whether it ended by itself before it was up, so that a replacement would too."""
        code = self.process.exitcode or 0
        return code == UNGUARDED_EXIT or (not self.is_up and code >= 0)

    def release(self) -> None:
        """Close its channel and forget its slots; batches in these slots stay valid."""
        self.channel.close()
        if self.note is not None:
            self.note.take()
        self.slots.close()
        self.notes = None


def start_tracker() -> None:
    """Start multiprocessing's resource tracker with signals blocked, unless it runs."""
    # The tracker sets its own mask, and Python 3.11 and 3.12 unblock Ctrl-C after that.
    if sys.platform != "win32":
        with block_signals():
            resource_tracker.ensure_running()


def without_signals(
    method: str, start: Callable[[], None] = forkserver.ensure_running
) -> contextlib.AbstractContextManager[None]:
    """Return a context in which a process starts with signals blocked, until it ignores them."""
    if method == "fork":
        return interrupts_later()
    if sys.platform == "win32":
        return contextlib.nullcontext()
    start_tracker()
    if method == "spawn":
        return block_signals()
    with block_signals():
        start()
    # The server blocks signals for its children. The wait for it stays interruptible, because its
    # import of torch takes seconds.
    return contextlib.nullcontext()


@contextlib.contextmanager
def pause_collector() -> Iterator[None]:
    """Disable garbage collection for workers forked in the block; they enable it when they are up.

    They must not finalize objects of the parent: a process group would wait for its threads.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextlib.contextmanager
def interrupts_later() -> Iterator[None]:
    """Delay Ctrl-C until the block ends; processes forked in it start with Ctrl-C blocked.

    Python's fork hooks print an error that a signal raises in them, and continue.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        with block_signals():
            yield  # another thread handles signals
        return
    came: list[tuple[int, FrameType | None]] = []
    # Other threads do not block Ctrl-C, so it may still arrive.
    signal.signal(signal.SIGINT, lambda *arguments: came.append(arguments))
    try:
        with block_signals():
            yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])


@contextlib.contextmanager
def block_signals() -> Iterator[None]:
    """Block signals of the consumer and of jobs, here and in processes that this thread starts."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS | signals_of_parent())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
