"""One pass over a loader: takes batches, notes how far it has come, and ends what it began."""

from __future__ import annotations

import copy
import os
import threading
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from operator import methodcaller
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
from .position import Position, Progress
from .stats import Counts

EXITING = threading.Event()  # set when the interpreter begins to end


@dataclass(frozen=True)
class RunningEpoch:
    """What runs, once the first batch of an epoch was asked for."""

    batches: Epoch  # its batches, after the pipes that stay in this process
    step: int
    """Distance of the batches of one share, where each comes in order; 1 where all of them do."""
    policy: ErrorPolicy
    device: str | None  # where the graph wants its batches; None where they are made


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
        begin: Callable[[Progress], RunningEpoch],
        end: Callable[[Progress], None],
        counts: Counts,
        origin: CallSite | None,
        turn: Turn,
    ) -> None:
        self._progress, self._begin, self._end = progress, begin, end
        self._counts, self._origin = counts, origin
        # Threads take turns. A second one in the midst of a batch would get it once more.
        self._turn = turn
        self._ended_by = ""
        self._running: RunningEpoch | None = None
        self._failure: BaseException | None = None
        self._interrupted = self._paused = False
        # Batches from one pause to the next, and those of them that are left; None for any number.
        self._most: int | None = None
        self._left: int | None = None
        self._process: int | None = None

    def __iter__(self) -> DataLoader2Iterator:
        return self

    def __next__(self) -> Any:
        here = os.getpid()
        if (self._process or here) != here:  # threads and workers that make batches are not here
            what = f"this iterator was begun before a fork, in process {self._process}"
            raise IteratorInvalidated(
                f"{what}: its batches are that process's", do="Iterate the loader anew in this one."
            )
        self._process = here
        try:
            with self._turn:
                return self._next()
        finally:
            # A daemon thread that is left over is kept: Python is about to end it where it stands,
            # and what it would be told, that its workers are gone, is nobody's error.
            if EXITING.is_set() and threading.current_thread() is not threading.main_thread():
                threading.Event().wait()

    def _next(self) -> Any:
        """Return the next batch, or raise why there is none, and end."""
        if self._ended_by:
            raise self._invalidated()
        if self._turn.in_a_batch:
            what = "a function that takes part in a batch asks the loader for another one"
            raise IteratorInvalidated(what, do="Give it what it needs, or make a second loader.")
        if self._failure is not None:
            raise self._failure  # the epoch failed; it did not end
        if self._paused:
            raise PauseIteration
        asked = time.perf_counter()
        self._counts.request(asked)
        try:
            self._turn.in_a_batch = True
            try:
                batch = self._deliver()
            finally:
                self._turn.in_a_batch = False
        except BaseException as error:
            self._end_with(error)
            raise
        if self._left is not None:
            self._left -= 1
            self._paused = self._left <= 0
        handed = time.perf_counter()
        self._counts.deliver(handed, handed - asked)
        return batch

    def _deliver(self) -> Any:
        """Return the next batch of which there is something, and note what was delivered."""
        while True:
            running = self._running or self._start()
            batch = next(running.batches)
            outcome = batch if isinstance(batch, BatchResult) else None
            here = self._progress.position
            failed = here.failed
            if outcome is not None:
                failed, batch = self._counts.admit(outcome, running.policy, failed), outcome.batch
                if outcome.is_empty:
                    here.place.leave_out(outcome.failures)
            if (device := running.device) is not None:
                batch = map_tensors(batch, methodcaller("to", device, non_blocking=True))
            # Last, and in one step: whoever interrupts this has the batch once more, not never.
            place = here.place.after(running.batches.last, running.step)
            self._progress.position = Position(here.epoch, place, failed)
            if outcome is None or not outcome.is_empty:
                if self._ended_by:  # somebody took over meanwhile, and maybe waits for this thread
                    self._close()
                return batch

    def _start(self) -> RunningEpoch:
        if self._progress.begun and not self._interrupted:
            raise StopIteration
        self._interrupted = False
        self._running = self._begin(self._progress)
        self._progress.batches = self._running.batches
        return self._running

    def _end_with(self, error: BaseException) -> None:
        self._close()
        if self._ended_by and isinstance(error, Exception):
            raise self._invalidated() from None  # it is what became of an epoch that was left
        if isinstance(error, StopIteration):
            self._end(self._progress)
            return
        if isinstance(error, VoxpipeError):
            error.at(self._origin)
        if isinstance(error, Exception):
            self._failure = _copy_error(error)
        else:  # Ctrl-C: nothing failed, so who asks again has the rest
            self._interrupted = True

    def _invalidated(self) -> IteratorInvalidated:
        do = "One iterator of a loader is live: take a new one, or make two loaders."
        return IteratorInvalidated(self._ended_by, do=do)

    def limit(self, num_batches: int | None) -> None:
        """Pause after ``num_batches`` more batches, again after each resume(); None: never."""
        if num_batches is not None:
            num_batches = validate_int("num_batches", num_batches, least=1)
        self._most = self._left = num_batches

    def pause(self) -> None:
        """Hand out no batch until :meth:`resume`; a ``for`` loop ends."""
        self._counts.interrupt()
        self._paused = True

    def resume(self) -> None:
        """Go on with the next batch; warns if the iterator is not paused."""
        if not self._paused:
            warnings.warn("this iterator is not paused: resume() does nothing", stacklevel=2)
        self._paused, self._left = False, self._most

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

    def _close(self) -> None:
        self._running = None
        self._progress.close()

    def __del__(self) -> None:
        # Dropped in the middle of an epoch: workers must not wait for the loader's own end.
        self._turn.defer(self._progress.close)


def _copy_error(error: Exception) -> Exception:
    """Return the error to raise when a failed epoch is asked once more."""
    # A copy: the traceback of the error holds the caller's frames, these hold the iterator, and an
    # iterator that held the error would keep the caller's batch until the next collection.
    try:
        again = copy.copy(error)
    except Exception:  # a user's class whose constructor wants more than its message
        return error
    again.__cause__ = error.__cause__
    return again
