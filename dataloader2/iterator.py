"""One pass over a loader: takes batches, notes how far it has come, and ends what it began."""

from __future__ import annotations

import copy
import os
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..batching import BatchResult, ErrorPolicy
from ..core import CallSite
from ..core.errors import IteratorInvalidated, VoxpipeError
from ..core.locks import ReentrantDeferredLock
from ..core.validate import validate_int
from ..datapipes.tensors import map_tensors
from ..reading_services import Epoch
from ..reading_services.reading_service import leave
from .error import PauseIteration
from .position import Progress
from .stats import Counts


class Pausing:
    """Counts batches against a limit. What stands still is the iterator, not its epoch."""

    def __init__(self) -> None:
        self._most: int | None = None
        self._left: int | None = None
        self._paused = False

    def limit(self, batches: int | None) -> None:
        """Pause after this many more batches; None takes the limit away."""
        if batches is not None:
            batches = validate_int("num_batches", batches, least=1)
        self._most = self._left = batches

    def pause(self) -> None:
        """Hand out nothing until :meth:`resume`."""
        self._paused = True

    def resume(self) -> None:
        """Go on, under the same limit."""
        if not self._paused:
            warnings.warn("this iterator is not paused: resume() does nothing", stacklevel=3)
        self._paused, self._left = False, self._most

    def check(self) -> None:
        """Raise :class:`PauseIteration` if there is no batch to be had now."""
        if self._paused:
            raise PauseIteration

    def count(self) -> None:
        """Note that a batch was handed out."""
        if self._left is not None:
            self._left -= 1
            self._paused = self._left <= 0


EXITING = threading.Event()
"""Set when the interpreter begins to end."""


@dataclass(frozen=True)
class Begun:
    """What runs, once the first batch of an epoch was asked for."""

    batches: Epoch
    """Its batches, after the pipes that stay in this process."""
    step: int
    """Distance of the batches of one share, where each comes in order; 1 where all of them do."""
    policy: ErrorPolicy
    """What is done about items that cannot be made."""
    device: str | None
    """Where the graph wants its batches; None where they are made."""

    def moved(self, batch: Any) -> Any:
        """Return a batch on that device."""
        device = self.device
        if device is None:
            return batch
        return map_tensors(batch, lambda tensor: tensor.to(device, non_blocking=True))


class Turn(ReentrantDeferredLock):
    """Whose turn it is at a loader: of the threads that ask for a batch, or for another epoch."""

    def after_fork(self) -> None:
        """Leave the lock of the parent, and what a thread of it is at, behind."""
        super().after_fork()
        self.in_a_batch = False


class DataLoader2Iterator:
    """One epoch of a loader, which makes it.

    It belongs to the process that asked it first: a forked child is refused, whatever runs there.
    Threads may share it; each gets batches of its own, in the order in which they ask.

    It can be paused, by hand or after a number of batches: a ``for`` loop over it ends, and
    another one goes on after :meth:`resume`. Workers keep what they have made meanwhile.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> from voxpipe.dataloader2 import DataLoader2
    >>> batches = iter(DataLoader2(IterableWrapper(range(5))))
    >>> batches.limit(2)
    >>> list(batches)
    [0, 1]
    >>> batches.resume()
    >>> list(batches)
    [2, 3]
    """

    def __init__(
        self,
        progress: Progress,
        begin: Callable[[Progress], Begun],
        end: Callable[[Progress], None],
        counts: Counts,
        origin: CallSite | None,
        turn: Turn,
    ) -> None:
        self._progress = progress
        self._begin = begin
        self._end = end
        self._counts = counts
        self._origin = origin
        self._ended_by = ""
        self._running: Begun | None = None
        self._failure: BaseException | None = None
        self._interrupted = False
        self._pausing = Pausing()
        self._process: int | None = None
        # Threads take turns. A second one in the midst of a batch would get it once more.
        self._turn = turn

    def __iter__(self) -> DataLoader2Iterator:
        return self

    def __next__(self) -> Any:
        self._refuse_child()
        try:
            with self._turn:
                return self._next_or_why()
        finally:
            if EXITING.is_set():
                _end_with_the_interpreter()

    def _refuse_child(self) -> None:
        """Refuse a forked child: threads and workers that make batches are not there."""
        here = os.getpid()
        if self._process is None:
            self._process = here
        elif self._process != here:
            what = f"this iterator was begun before a fork, in process {self._process}"
            raise IteratorInvalidated(
                f"{what}: its batches are that process's", do="Iterate the loader anew in this one."
            )

    def _next_or_why(self) -> Any:
        """Return the next batch, or raise why there is none, and end."""
        if self._ended_by:
            raise self._invalidated()
        if self._turn.in_a_batch:
            what = "a function that takes part in a batch asks the loader for another one"
            raise IteratorInvalidated(what, do="Give it what it needs, or make a second loader.")
        if self._failure is not None:
            raise self._failure  # the epoch failed; it did not end
        self._pausing.check()
        asked = time.perf_counter()
        self._counts.consumer.requested(asked)
        try:
            batch = self._next()
        except BaseException as error:
            self._end_with(error)
            raise
        self._close_if_left()
        self._pausing.count()
        handed = time.perf_counter()
        self._counts.consumer.delivered(handed)
        self._counts.waits.add(handed - asked)
        return batch

    def _end_with(self, error: BaseException) -> None:
        """End the epoch with what ``next`` is about to raise."""
        self._close()
        if self._ended_by and isinstance(error, Exception):
            raise self._invalidated() from None  # it is what became of an epoch that was left
        if isinstance(error, StopIteration):
            self._end(self._progress)
            return
        if isinstance(error, VoxpipeError):
            error.at(self._origin)
        if isinstance(error, Exception):
            self._failure = _again(error)
        else:  # Ctrl-C: nothing failed, so who asks again has the rest
            self._interrupted = True

    def _invalidated(self) -> IteratorInvalidated:
        do = "One iterator of a loader is live: take a new one, or make two loaders."
        return IteratorInvalidated(self._ended_by, do=do)

    def _next(self) -> Any:
        """Return the next batch of which there is something, and note what was delivered."""
        self._turn.in_a_batch = True
        try:
            return self._delivered()
        finally:
            self._turn.in_a_batch = False

    def _delivered(self) -> Any:
        while True:
            running = self._started()
            batch = next(running.batches)
            here = self._progress.position
            failed = here.failed
            if isinstance(batch, BatchResult):
                failed = self._counts.failures.admit(batch, running.policy, failed)
            is_empty = isinstance(batch, BatchResult) and batch.is_empty
            if is_empty:
                here.place.leave_out(batch.failures)
            else:
                batch = running.moved(batch.batch if isinstance(batch, BatchResult) else batch)
            # Last, and in one step: whoever interrupts this has the batch once more, not never.
            self._progress.position = here.after(running.batches.last, failed, running.step)
            if not is_empty:
                return batch

    def limit(self, num_batches: int | None) -> None:
        """Pause after ``num_batches`` more batches, again after each resume(); None: never."""
        self._pausing.limit(num_batches)

    def pause(self) -> None:
        """Hand out no batch until :meth:`resume`; a ``for`` loop ends."""
        self._counts.consumer.interrupt()
        self._pausing.pause()

    def resume(self) -> None:
        """Go on with the next batch; warns if the iterator is not paused."""
        self._pausing.resume()

    def _started(self) -> Begun:
        if self._running is None:
            if self._progress.begun and not self._interrupted:
                raise StopIteration
            self._interrupted = False
            self._running = self._begin(self._progress)
            self._progress.batches = self._running.batches
        return self._running

    def leave(self, why: str) -> None:
        """Ask whoever is in the midst of a batch to end; further use says why."""
        self._ended_by = self._ended_by or why
        running = self._running
        if running is not None:
            leave(running.batches)

    def invalidate(self, why: str) -> None:
        """End the epoch, in one's turn; further use says why."""
        self._ended_by = self._ended_by or why
        if self._turn.in_a_batch:  # a function, or a handler of a signal, in the midst of it
            self.leave(why)
        else:
            self._close()

    def _close_if_left(self) -> None:
        """End the epoch if somebody took over meanwhile, and maybe waits for this thread."""
        if self._ended_by:
            self._close()

    def _close(self) -> None:
        self._running = None
        self._progress.close()

    def __del__(self) -> None:
        # Dropped in the middle of an epoch: workers must not wait for the loader's own end.
        self._turn.defer(self._progress.close)


def _end_with_the_interpreter() -> None:
    """Keep a daemon thread that is left over: Python is about to end it where it stands.

    What it would be told, that its workers are gone, is nobody's error.
    """
    if threading.current_thread() is not threading.main_thread():
        threading.Event().wait()


def _again(error: Exception) -> Exception:
    """Return the error to raise when a failed epoch is asked once more.

    A copy: the traceback of the error holds the caller's frames, these hold the iterator, and
    an iterator that held the error would keep the caller's batch until the next collection.
    """
    try:
        again = copy.copy(error)
    except Exception:  # a user's class whose constructor wants more than its message
        return error
    again.__cause__ = error.__cause__
    return again
