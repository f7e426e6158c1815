"""One worker process as the consumer sees it, and what it takes to start one."""

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
from ..transport.batch_pickle import unpack
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
        "If nobody killed it, the system did, for lack of memory: try fewer workers or smaller "
        "batches."
    ),
    -getattr(signal, "SIGBUS", 0): "A file that it had mapped became shorter, or its disk failed.",
    UNGUARDED_EXIT: _GUARD,
}


def advice(exitcode: int | None, was_up: bool) -> str:
    """Return what to do about it."""
    if exitcode is not None and exitcode in _ADVICE:
        return _ADVICE[exitcode]
    if not was_up:
        return f"{_GUARD} Its own message is above."
    if exitcode == DEAF:
        return "Its own message is above; for lack of memory, try fewer workers."
    if exitcode in _CRASHES:
        return (
            "Compiled code crashed: run with num_workers=0 and python -X faulthandler to see where."
        )
    return (
        "A function or library that it called ended the process by itself (os._exit): run "
        "with num_workers=0 to see where."
    )


def not_started(which: str, seconds: float, stack: str) -> WorkerDied:
    """Return the error of a process that hung while it started."""
    return WorkerDied(
        f"{which} did not start within {seconds:g} s; its import waits at\n  {stack}",
        do="Workers import the script: put lines that wait (a port, a lock, other processes) under "
        'if __name__ == "__main__":. Raise Timeout(start=...) if importing takes longer.',
    )


def failed_start(error: BaseException, note: StartNote | None) -> WorkerDied | None:
    """Return what kept a process from being started, or None for any other error."""
    if note is not None and isinstance(error, (EOFError, OSError)) and (stack := note.take()):
        return not_started("the fork server of the workers", note.limit, stack)
    if not isinstance(error, (EOFError, OSError, RuntimeError)):
        return None
    limits = (
        "Is there memory for another process, and may there be one more (ulimit -u)? May this "
        "process open more files (ulimit -n)? Or use fewer workers and loaders."
    )
    what = f"no worker could be started: {type(error).__name__}: {error}"
    return WorkerDied(what, do=limits)


@dataclass(eq=False)
class Worker:
    """One process, its channel, and what it is busy with."""

    number: int
    process: Any
    channel: connection.Connection
    slots: SlotReader
    _at: Callable[[int, int, Any], WorkerStatus]  # of the step and item in its notes, and its job
    jobs: deque[Any] = field(default_factory=deque)
    notes: Any = None  # memory in which it notes what it is at
    _standing: tuple[tuple[int, int, int], float] | None = None
    is_up: bool = False  # whether it has started
    is_gone: bool = False  # whether it was found dead
    note: StartNote | None = None  # where it writes its stack if it does not start in time
    is_outdated: bool = False  # whether objects in its payload changed here since it has it
    patience: float = 0.0  # seconds that a message to it may wait

    def __str__(self) -> str:
        return f"worker {self.number} (pid {self.process.pid})"

    def limit_waits(self, seconds: float) -> None:
        """Let messages to it and from it wait so long."""
        self.patience = seconds
        limit_waits(self.channel, seconds)

    def open(self, data: bytes) -> tuple[Any, int]:
        """Return a batch that this worker made, and the bytes that it takes."""
        arrival = Arrival(self.slots)
        batch = unpack(data, arrival)
        return batch, len(data) + arrival.bytes

    def busy_with(self) -> WorkerStatus:
        """Return what it is doing, for messages."""
        if not self.jobs:
            return WorkerStatus("nothing to do")
        if self.notes is None:
            return self._at(NOWHERE, NOWHERE, self.jobs[0])
        return self._doing(*step_noted_in(self.notes))

    def _doing(self, step: int, item: int) -> WorkerStatus:
        running = pass_noted_in(self.notes[NOTE_BYTES:])
        return replace(self._at(step, item, self.jobs[0]), whole_pass=running)

    def overdue(self, now: float) -> WorkerStatus | None:
        """Return what it has been at for longer than it may; asked from time to time."""
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
        """Return the error that says how it ended and what it was doing."""
        self.process.join(timeout_or_none(seconds))
        doing = self.busy_with()
        if self.note is not None and (stack := self.note.take()):
            return not_started(str(self), self.note.limit, stack)
        code = self.process.exitcode
        how = _ENDINGS.get(code, f"ended with exit status {code}")
        if code is not None and code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        error = WorkerDied(f"{self} {how} while it had {doing.what}", do=advice(code, self.is_up))
        error.at(doing.origin)
        return error

    def failed_to_start(self) -> bool:
        """Whether it ended by itself before it was up, as another one in its place would."""
        code = self.process.exitcode or 0
        return code == UNGUARDED_EXIT or (not self.is_up and code >= 0)

    def release(self) -> None:
        """Close its channel and forget its slots; batches that lie in them stay."""
        self.channel.close()
        if self.note is not None:
            self.note.take()
        self.slots.close()
        self.notes = None


def start_tracker() -> None:
    """Start multiprocessing's tracker of resources with signals blocked, unless it runs."""
    # The tracker sets its own mask, and Python 3.11 and 3.12 unblock Ctrl-C after that.
    if sys.platform != "win32":
        with block_signals():
            resource_tracker.ensure_running()


def without_signals(
    method: str, start: Callable[[], None] = forkserver.ensure_running
) -> contextlib.AbstractContextManager[None]:
    """Start a process with signals blocked, inside the ``with`` block, until it ignores them."""
    if method == "fork":
        return interrupts_later()
    if sys.platform == "win32":
        return contextlib.nullcontext()
    start_tracker()
    if method == "spawn":
        return block_signals()
    with block_signals():
        start()
    # The server blocks signals for its children. A wait for the server can be interrupted: its
    # import of torch takes seconds.
    return contextlib.nullcontext()


@contextlib.contextmanager
def pause_collector() -> Iterator[None]:
    """Begin forked workers without garbage collection, which they turn on when they are up.

    What the parent left behind is not theirs to end: a group of ranks would wait for its threads.
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
    """Let Ctrl-C wait until this block ends; what is forked in it is born with Ctrl-C blocked.

    Python's hooks about a fork print what a signal raises in them, and go on.
    """
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        with block_signals():
            yield  # signals are handled elsewhere
        return
    came: list[tuple[int, FrameType | None]] = []
    # Another thread may let it in; this one handles it then.
    signal.signal(signal.SIGINT, lambda *of_signal: came.append(of_signal))
    try:
        with block_signals():
            yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if came:
            handler(*came[0])


@contextlib.contextmanager
def block_signals() -> Iterator[None]:
    """Block signals of the consumer and of jobs in this thread, and in processes that it starts."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS | signals_of_parent())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
