"""One pass over a loader: it takes batches, notes its position, and ends its epoch.

The counts and figures of a loader are here, too.
"""

from __future__ import annotations

import contextlib
import copy
import os
import sys
import threading
import time
import warnings
import weakref
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from statistics import median
from types import FrameType
from typing import Any, NoReturn

import torch

from ..batching.job import BatchResult, ErrorPolicy, Failure
from ..core import CallSite, Viewable
from ..core.context import RUNNING_PASS
from ..core.errors import IteratorInvalidated, NotPicklable, TooManyFailures, VoxpipeError
from ..core.locks import DeferredActs, ForkSafeLock
from ..core.progress import progress_line
from ..core.validate import validate_int
from ..core.views import call_extension
from ..first_use import consult, extensions
from ..graph import Traits, traits_of, walk
from ..reading_services import Epoch
from ..reading_services.planner import Position
from ..reading_services.reading_service import leave

EXITING = threading.Event()  # set when the interpreter begins to end


class PauseIteration(StopIteration):
    """Raised in the place of a batch by an iterator that is paused: a ``for`` loop ends."""


@dataclass
class Progress:
    """How far one epoch has come; outlives its iterator."""

    position: Position
    is_live: bool = False  # whether an iterator was made for it
    has_begun: bool = False  # whether a batch was asked for
    batches: Epoch | None = None
    """The running epoch. Its successor ends it, also while its iterator is being collected."""

    def close(self) -> None:
        """End the running epoch; any number of times."""
        batches, self.batches = self.batches, None
        if batches is not None:
            batches.close()

    def following(self) -> Position:
        """Return where the next epoch begins; one that was never begun has used up nothing."""
        return Position(self.position.epoch + 1) if self.has_begun else self.position


# Failures that are kept; the counts go on.
_MOST_FAILURES = 1000
# A message is read by a person.
_MOST_LINES = 3
# The first batches include compiling and warming up; the median of so many is not moved by them.
RECENT_BATCHES = 64


class Counts:
    """Counts of a loader over all its epochs: failures, waits, how long batches are kept."""

    def __init__(self) -> None:
        self.failures: deque[Failure] = deque(maxlen=_MOST_FAILURES)
        self.errors: Counter[str] = Counter()
        self.batches, self.wait, self.longest = 0, 0.0, 0.0
        self._durations: deque[float] = deque(maxlen=RECENT_BATCHES)
        self._since: float | None = None

    def admit(self, outcome: BatchResult, policy: ErrorPolicy, here: Position) -> int:
        """Count the failures of one batch; return those of the epoch, if the budget allows."""
        self.failures += outcome.failures
        self.errors.update(failure.error for failure in outcome.failures)
        total = here.failures + len(outcome.failures) + outcome.elsewhere
        if policy.budget is not None and total > policy.budget:
            last = "\n".join(map(str, outcome.failures[:_MOST_LINES])) or "on another rank"
            msg = f"{total} items failed in this epoch, and {policy.budget} may; the last:\n{last}"
            do = "Mend the files, or give OnError(budget=...) more; loader.failures has them."
            raise TooManyFailures(msg, do=do)
        if outcome.is_empty:
            here.cursor.leave_out(outcome.failures)
        return total

    def deliver(self, start: float, end: float) -> None:
        """Note that a batch was requested and handed out: the last one was kept until the start."""
        if self._since is not None:
            self._durations.append(start - self._since)
        self._since, wait = end, end - start
        self.batches += 1
        self.wait += wait
        self.longest = max(self.longest, wait)

    def fail(self, start: float) -> None:
        """Note that a batch was requested, and that there is none."""
        if self._since is not None:
            self._durations.append(start - self._since)
        self._since = None

    def interrupt(self) -> None:
        """Leave out the time until the next batch: an epoch ended, or something else ran."""
        self._since = None

    def kept_seconds(self) -> float | None:
        """Return the median time that a batch was kept; None if none has come back."""
        return median(self._durations) if self._durations else None


@dataclass(frozen=True)
class Stats(Viewable):
    """Figures of one loader, all epochs together."""

    epoch: int
    """Epoch of the next batch."""
    next_batch: int
    """Which batch of it comes next."""
    batches: int
    """Batches handed out."""
    wait: float
    """Seconds from asking for a batch to having it."""
    longest: float
    """The longest of these waits."""
    step_time: float | None
    """Seconds for which a batch is kept before the next is asked for, the median of the last."""
    failures: Mapping[str, int] = field(default_factory=dict)
    """How many errors of each class ``OnError`` let pass."""
    pipes: tuple[Mapping[str, Any], ...] = ()
    """The counts of each pipe, if ``Profile`` is among the adapters."""

    @property
    def rate(self) -> float | None:
        """Batches per second of waiting; None before the first."""
        return self.batches / self.wait if self.wait else None

    def to_json(self) -> dict[str, Any]:
        """Return the figures as plain data."""
        return {**asdict(self), "pipes": [dict(row) for row in self.pipes]}

    def __str__(self) -> str:
        text = "-" if self.step_time is None else f"{self.step_time * 1e3:.1f} ms each (median)"
        mean = self.wait / self.batches * 1e3 if self.batches else 0.0
        lines = [
            f"at batch {self.next_batch} of epoch {self.epoch}; {self.batches} delivered",
            f"waited {self.wait:.2f} s for them, {mean:.1f} ms each, "
            f"{self.longest * 1e3:.1f} ms at most; kept {text}",
        ]
        if self.failures:
            each = ", ".join(f"{count} {name}" for name, count in self.failures.items())
            lines.append(f"let pass by OnError: {each}")
        rows = (f"{r['items']:>9} items {r['seconds']:8.2f} s  {r['pipe']}" for r in self.pipes)
        return "\n".join([*lines, *rows])


@dataclass(frozen=True)
class RunningEpoch:
    """The state of an epoch after its first batch was requested."""

    batches: Epoch  # its batches, after the pipes that stay in this process
    step: int
    """Distance of the batches of one share, where each comes in order; 1 where all of them do."""
    policy: ErrorPolicy
    items_without_fill: Callable[[], int] = int
    """Items of the last batch of all ranks before its fill; 0 without fill, -1 if unknown."""


def shown_to_frameworks(running: RunningEpoch) -> RunningEpoch:
    """Return an epoch whose batches the imported frameworks follow."""
    # Entry points by the name of the framework's package: each returns a running epoch.
    points = extensions("epochs")
    for name in points.keys() & sys.modules.keys():
        # replace() refuses anything else.
        running = consult(points[name], running, lambda epoch=running: replace(epoch))
    return running


class Turn(ForkSafeLock):  # type: ignore[misc]  # final in typeshed alone
    """Whose turn it is at a loader: of the threads that ask for a batch, or for another epoch."""

    in_a_batch = False

    def __init__(self) -> None:
        super().__init__()
        self.acts = DeferredActs(self)

    def restore(self, had_turn: bool) -> None:
        """Release the turn unless the thread had it before, and run acts that are due."""
        if not had_turn and self.is_mine():
            self.release()
        self.acts.defer()

    def after_fork(self) -> None:
        """Drop the lock of the parent process, and the batch of its thread."""
        super().after_fork()
        self.in_a_batch = False


def refuse_copy(thing: Any) -> NoReturn:
    """Raise for a copy or a pickle: it would share workers and their end with its original."""
    raise NotPicklable(
        f"a {type(thing).__name__} cannot be pickled or copied, as it holds workers and a running "
        "epoch",
        do="Make the loader again from its chain where it is needed, and load_state_dict() the "
        "state_dict() of this one.",
    )


class DataLoader2Iterator(Iterator[Any]):
    """One epoch of a loader, which makes it.

    It belongs to the process that used it first: a forked child is always refused. Threads may
    share it; each gets batches of its own, in the order of their calls.

    It can be paused, by hand or after a number of batches: a ``for`` loop over it ends, and
    another one goes on after :meth:`resume`. Workers keep their finished batches meanwhile.

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
        self._is_interrupted = self._is_paused = False
        # Batches from one pause to the next, and those of them that are left; None for any number.
        self._most: int | None = None
        self._remaining: int | None = None
        self._process: int | None = None

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse_copy(self)

    def __next__(self) -> Any:
        here = os.getpid()
        if (self._process or here) != here:  # threads and workers that make batches are not here
            msg = f"this iterator was begun before a fork, in process {self._process}"
            msg += ": its batches are that process's"
            raise IteratorInvalidated(msg, do="Iterate the loader anew in this one.")
        self._process = here
        try:
            with self._turn:
                return self._next()
        finally:
            if self._turn.acts.due:
                self._turn.acts.defer()
            # A remaining daemon thread waits here: Python is about to end it, and an error about
            # its stopped workers would mislead.
            if EXITING.is_set() and threading.current_thread() is not threading.main_thread():
                threading.Event().wait()

    def _next(self) -> Any:
        """Return the next batch that is not empty and note it, or raise why there is none."""
        if self._ended_by:
            raise self._invalidation()
        if self._turn.in_a_batch:
            what = "a function that takes part in a batch asks the loader for another one"
            raise IteratorInvalidated(what, do="Give it what it needs, or make a second loader.")
        if self._failure is not None:
            raise self._failure  # the epoch failed; it did not end
        if self._is_paused:
            raise PauseIteration
        start, is_empty = time.perf_counter(), True
        try:
            self._turn.in_a_batch = True
            while is_empty:
                running = self._running or self._start()
                if self._progress.position.cursor.next:
                    batch = next(running.batches)
                else:  # the first one waits for workers, listings and first passes
                    with progress_line("first batch", text=RUNNING_PASS.in_words):
                        batch = next(running.batches)
                here = self._progress.position
                count, is_empty = here.failures, False
                if isinstance(batch, BatchResult):
                    count = self._counts.admit(batch, running.policy, here)
                    batch, is_empty = batch.batch, batch.is_empty
                # Last, and in one step: an interrupted batch comes once more, and is never lost.
                cursor = here.cursor.after(running.batches.last, running.step)
                self._progress.position = Position(here.epoch, cursor, count)
            # Replaced meanwhile, in another thread: the new owner may wait for this one.
            if bool(self._ended_by):
                self._close()
        except BaseException as error:
            self._turn.in_a_batch = False
            self._counts.fail(start)
            self._end_with(error)
            raise
        finally:
            self._turn.in_a_batch = False
        if self._remaining is not None:
            self._remaining -= 1
            self._is_paused = self._remaining <= 0
        self._counts.deliver(start, time.perf_counter())
        return batch

    def _start(self) -> RunningEpoch:
        if self._progress.has_begun and not self._is_interrupted:
            raise StopIteration
        self._is_interrupted = False
        self._running = self._begin(self._progress)
        self._progress.batches = self._running.batches
        return self._running

    def _end_with(self, error: BaseException) -> None:
        self._close()
        if self._ended_by and isinstance(error, Exception):
            raise self._invalidation() from None  # the epoch was left
        if isinstance(error, StopIteration):
            self._end(self._progress)
            return
        if isinstance(error, VoxpipeError):
            error.at(self._origin)
        if isinstance(error, Exception):
            # A copy: the traceback of the error holds the caller's frames, which hold the iterator.
            # So the caller's batch would be kept until the next collection.
            self._failure = error
            with contextlib.suppress(Exception):  # a user's class may want more than its message
                # Where tblib is installed, as by dask, a copy has the traceback, too.
                self._failure = copy.copy(error).with_traceback(None)
                self._failure.__cause__, self._failure.__context__ = error.__cause__, None
        else:  # Ctrl-C: nothing failed, so who asks again has the rest
            self._is_interrupted = True

    def _invalidation(self) -> IteratorInvalidated:
        do = "One iterator of a loader is live: take a new one, or make two loaders."
        return IteratorInvalidated(self._ended_by, do=do)

    def limit(self, num_batches: int | None) -> None:
        """Pause after ``num_batches`` more batches, again after each resume(); None: never."""
        if num_batches is not None:
            num_batches = validate_int("num_batches", num_batches, least=1)
        self._most = self._remaining = num_batches

    def pause(self) -> None:
        """Hand out no batch until :meth:`resume`; a ``for`` loop ends."""
        self._counts.interrupt()
        self._is_paused = True

    def resume(self) -> None:
        """Go on with the next batch; warns if the iterator is not paused."""
        if not self._is_paused:
            warnings.warn("this iterator is not paused: resume() does nothing", stacklevel=2)
        self._is_paused, self._remaining = False, self._most

    def leave(self, why: str) -> None:
        """Stop a thread in the middle of a batch; further use raises the reason."""
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
        self._turn.acts.defer(self._progress.close)


@dataclass(frozen=True)
class TorchSeed:
    """A seed that torch's global generator drew, and where that generator was."""

    seed: int
    _before: torch.Tensor
    _seeded_with: int

    @classmethod
    def draw(cls) -> TorchSeed:
        """Draw one."""
        before, seeded_with = torch.get_rng_state(), torch.initial_seed()
        seed = int(torch.empty((), dtype=torch.int64, device="cpu").random_().item())
        return cls(seed, before, seeded_with)

    def is_outdated(self) -> bool:
        """Whether the generator was seeded since, so that another run is meant to begin."""
        # It was in three cases: it has another seed, or its state from before this draw, or the
        # state right after a seed. A generator with its old seed that was then used in another way
        # is not detected.
        now, seeded_with = torch.get_rng_state(), torch.initial_seed()
        if seeded_with != self._seeded_with or torch.equal(now, self._before):
            return True
        return torch.equal(now, torch.Generator().manual_seed(seeded_with).get_state())


def _repeated_batches(frame: FrameType) -> float:
    """Return the batches of the epoch that a trainer in the frames repeats, or 0."""
    # Entry points by the name of the framework's package: each returns 0 if it repeats none.
    points = extensions("frameworks")
    names = points.keys() & sys.modules.keys()
    return max((consult(points[name], frame, float) for name in names), default=0)


@dataclass
class EpochSetter:
    """The sampler of a loader, for frameworks, which number epochs in their own way.

    The first pass after ``set_epoch(e)`` is epoch *e* of the loader, or the next unused epoch if
    *e* was used: a loader that a framework cycles has more epochs than the framework. The same
    number once more begins the same epoch again, as a second validation does.
    """

    _loader: Any
    batch_size: int  # items that the chain gathers in a batch; 1 where it gathers none
    drop_last: bool  # whether a last, smaller batch is left out

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass be that of ``epoch``; the place of a loaded state is not lost.

        A framework may request the iterator of its first epoch before it sets the number.
        """
        loader = self._loader
        progress = loader._progress
        here, batches = progress.position.epoch, _repeated_batches(sys._getframe(1))
        # A resumed run, too, repeats the epoch that it is in.
        last = loader._set_from_outside or ((epoch, here) if batches else None)
        if last and (last[0] == epoch or batches):
            epoch, start = last
        else:
            start = max(epoch, here + progress.has_begun)
        if progress.has_begun or start != here:
            loader.set_epoch(start)
        elif 0 < batches <= progress.position.cursor.next:  # a resume after the last of them
            progress.position = Position(start)
        loader._set_from_outside = epoch, start


class ForFrameworks:
    """Attributes of torch's loaders that frameworks read."""

    datapipe: Any
    _is_inner = False  # whether another loader reads the batches, and not the training loop
    _live: weakref.ref[DataLoader2Iterator] | None
    _progress: Progress
    _turn: Turn
    _own: DataLoader2Iterator | None = None  # the epoch that ``next(loader)`` has begun

    @property
    def _position(self) -> Position:
        """The position of the running epoch, or else of the next one."""
        return self._progress.position

    def _seek(self, position: Position) -> None:
        """Let the next iterator begin at a position; a running epoch has ended before."""
        self._progress = Progress(position)

    def metrics(self) -> dict[str, float]:
        """Return the present figures as numbers, for any logger of experiments.

        Examples
        --------
        >>> from torch.utils.data.datapipes.iter import IterableWrapper
        >>> from voxpipe.dataloader2 import DataLoader2
        >>> loader = DataLoader2(IterableWrapper([1, 2]))
        >>> list(loader), loader.metrics()["loader/batches"]
        ([1, 2], 2)
        """
        figures: dict[str, float] = call_extension("metrics", self)
        return figures

    def __next__(self) -> Any:
        """Return the next batch of the running epoch; begin the next epoch if none is running.

        ``StopIteration`` ends an epoch. A failed epoch raises its error until ``iter()``.
        """
        with self._turn:
            live = self._live() if self._live is not None else None
            if live is None or live._progress is not self._progress or live._ended_by:
                live = self._own = iter(self)  # type: ignore[call-overload]
        try:
            return next(live)
        except StopIteration as end:
            with self._turn:  # another thread may have begun the next epoch
                if self._own is live and not isinstance(end, PauseIteration):
                    self._own = None
            raise

    @property
    def sampler(self) -> EpochSetter:
        """The object on which frameworks set the epoch: ``loader.sampler.set_epoch(epoch)``."""
        gathering = [t for t in map(traits_of, walk(self.datapipe)) if t.group]
        last = gathering[-1] if gathering else Traits()
        return EpochSetter(self, max(1, last.group), last.drop_last)

    # Frameworks read the items of a batch here: ``loader.batch_sampler.batch_size``.
    batch_sampler = sampler

    @property
    def dataset(self) -> NoReturn:
        """None: a loader has a chain."""
        raise AttributeError(
            "a DataLoader2 has a chain and no dataset, which skip_first_batches() of Accelerate "
            "and the like would put into another loader. To go on within an epoch, give "
            "load_state_dict() what state_dict() returned: nothing is skipped. Trainer of Hugging "
            "Face then takes ignore_data_skip=True. Loaders of to_dataset() have a dataset"
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        refuse_copy(self)
