"""Iterate a pipe in a thread, a bounded number of items ahead, and end such threads in time."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, ClassVar

from torch.utils.data.datapipes.utils.common import StreamWrapper

from ..batching.job import Instruction
from ..core.call_site import warn
from ..core.context import ContextKey, holding
from ..core.errors import PrefetchTimeoutError, WorkerDied
from ..core.locks import timeout_or_none
from ..core.validate import validate_int
from ..graph import Pipe, Traits
from .datapipe import DataPipe, Running, SameLength
from .tensors import BUFFER_BYTES, bytes_of

# The end of a pass stops every thread, and waits at most this long for its current item or call.
# The next pass may read from the same source. A slower thread is named in a warning, reads nothing
# more, and delays neither the next pass nor the end of the program. Pipes with threads stop one
# after the other and share one limit. So any number of them ends within the 5 s that Ctrl-C may
# take. Only waits count, and each item that is made resets the limit. A loader sets one limit for
# all threads from ``Timeout(stop=...)``.
STOP_SECONDS = 2.0  # longest wait for one thread, by default
# The first thread may use two thirds of the common limit, the next two thirds of the rest, and so
# on. Each has time to end if it is idle, and their sum stays below the limit.
_OF_THE_REST = 2 / 3


class _Limit:
    """Longest wait for the first thread, and a function that is called once before it."""

    def __init__(self, seconds: float, tell: Callable[[], None] | None = None) -> None:
        self.seconds, self.tell = seconds, tell


_NOW = ContextKey(_Limit(STOP_SECONDS))
# By thread, for how many seconds it has waited for others since a pass went on here.
_ACCOUNT = threading.local()


def stop_limit(
    seconds: float = STOP_SECONDS, tell: Callable[[], None] | None = None
) -> holding[_Limit]:
    """Let the first thread stopped inside take so long, and all together half as long again."""
    return holding(_NOW, _Limit(seconds, tell))


def note_progress() -> None:
    """Note that a pass continues: its later end has the full limit again."""
    _ACCOUNT.seconds = 0.0


def start_thread(thread: threading.Thread) -> None:
    """Start a thread; ``WorkerDied`` where the process may not have one more."""
    try:
        thread.start()
    except RuntimeError as error:
        raise WorkerDied(
            f"the thread {thread.name} could not be started: {error}",
            do="Is there memory for one more, and may there be one (ulimit -u, or the limit of the "
            "container)? Or use fewer threads, workers and loaders.",
        ) from error


def join_threads(*threads: threading.Thread, most: float = float("inf")) -> threading.Thread | None:
    """Wait for stopping threads up to the limit; return one that still runs, if any."""
    # Skip the calling thread: garbage collection may drop an iterator in its own thread.
    others = [thread for thread in threads if thread is not threading.current_thread()]
    if not any(thread.is_alive() for thread in others):
        return None
    limit = _NOW.get()
    tell, limit.tell = limit.tell, None
    if tell is not None:
        tell()
    start = monotonic()
    remaining = max(0.0, limit.seconds / _OF_THE_REST - getattr(_ACCOUNT, "seconds", 0.0))
    end = start + min(most, remaining * _OF_THE_REST)
    try:
        for thread in others:
            thread.join(max(0.0, end - monotonic()))
    finally:
        _ACCOUNT.seconds = getattr(_ACCOUNT, "seconds", 0.0) + monotonic() - start
    return next((thread for thread in others if thread.is_alive()), None)


def warn_still_running(name: str) -> None:
    """Warn of a thread that goes on."""
    text = f"the thread {name!r} is still at one item, which Python cannot interrupt; it ends when "
    warn(text + "that is done", RuntimeWarning)


# An item that takes longer to make is worth a word when it holds up a pause.
PAUSE_SECONDS = 30.0


class Exhausted(Exception):
    """All items were taken."""


class BackgroundIterator(Iterator[Any]):
    """Items of a pipe, made ahead by a thread.

    An error comes after the items made before it, as the very same object. A forked child has no
    threads: using an iterator of its parent there is an error, not a hang.
    """

    def __init__(
        self,
        source: Iterable[Any],
        *,
        most: int,
        most_bytes: int,
        change: Callable[[Any], Any] | None = None,
        name: str = "prefetch",
    ) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._lock = threading.RLock()
        # Entered itself: Condition's methods are in Python, where Ctrl-C would leave it taken.
        self._condition = threading.Condition(self._lock)
        self._items: deque[tuple[Any, int]] = deque()
        self._bytes = 0
        self._error: BaseException | None = None
        self._at_end = self._stopping = self._is_abandoned = self._pausing = self._making = False
        self._process = os.getpid()
        target, arguments = self._run, (source, change)
        self._thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        start_thread(self._thread)

    def __next__(self) -> Any:
        if self._stopping:
            raise StopIteration
        try:
            return self.take()
        except Exhausted:
            raise StopIteration from None

    def take(self, timeout: float = float("inf")) -> Any:
        """Return the next item."""
        self._refuse_child()
        note_progress()
        with self._lock:
            is_ready = lambda: self._items or self._at_end or (self._pausing and not self._making)  # noqa: E731
            if not self._condition.wait_for(is_ready, timeout_or_none(timeout)):
                raise PrefetchTimeoutError(timeout)
            if self._items:
                item, size = self._items.popleft()
                self._bytes -= size
                self._condition.notify_all()
                return item
            if self._at_end:
                error, self._error = self._error, None
                raise Exhausted if error is None else error
        msg = "prefetch is paused and everything made before was taken; call resume() first"
        raise RuntimeError(msg)

    def pause(self, timeout: float = PAUSE_SECONDS) -> None:
        """Return when the thread takes no further item."""
        self._refuse_child()
        with self._lock:
            self._pausing = True
            if not self._condition.wait_for(lambda: not self._making or self._at_end, timeout):
                raise PrefetchTimeoutError(timeout)

    def resume(self) -> None:
        """Let the thread go on."""
        with self._lock:
            self._pausing = False
            self._condition.notify_all()

    def abandon(self) -> None:
        """Stop the thread without a wait, neither here nor in :meth:`stop`."""
        # The caller has waited for the current item already.
        with self._lock:
            self._stopping = self._is_abandoned = True
            self._condition.notify_all()

    def stop(self) -> None:
        """End the thread, and drop its items; any number of times."""
        if os.getpid() != self._process:
            return
        with self._lock:
            self._stopping = True
            self._condition.notify_all()
        if not self._is_abandoned and join_threads(self._thread) is not None:
            self.abandon()
            warn_still_running(self._thread.name)
        while self._items:
            StreamWrapper.close_streams(self._items.popleft()[0])

    close = stop

    def running_threads(self) -> list[threading.Thread]:
        """Return the thread as long as it runs."""
        return [self._thread] if self._thread.is_alive() else []

    def _refuse_child(self) -> None:
        if os.getpid() != self._process:
            msg = "this iterator was begun before a fork, and its thread is in the other process; "
            raise RuntimeError(msg + "iterate the pipe anew in this one")

    def _run(self, source: Iterable[Any], change: Callable[[Any], Any] | None) -> None:
        error: BaseException | None = None
        try:
            if self._may_make():
                self._fill(source, change)
        except BaseException as failure:  # SystemExit as well: it is the consumer's to handle
            error = failure
        with self._lock:
            self._error, self._at_end, self._making = error, True, False
            self._condition.notify_all()

    def _fill(self, source: Iterable[Any], change: Callable[[Any], Any] | None) -> None:
        items = iter(source)
        try:
            for item in items:
                self._put(item if change is None else change(item))
                if not self._may_make():
                    return
        finally:
            # Here, as a generator can only be closed by the thread that is not running it.
            close = getattr(items, "close", None)
            if close is not None:
                close()

    def _may_make(self) -> bool:
        """Wait until there is room for an item; return whether to make it."""
        with self._lock:
            self._making = False
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._stopping or (not self._pausing and self._fits()))
            self._making = not self._stopping
            return self._making

    def _put(self, item: Any) -> None:
        """Add an item once it fits; one alone always does."""
        size = bytes_of(item)
        with self._lock:
            self._making = False
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._stopping or self._fits(size))
            if self._stopping:
                StreamWrapper.close_streams(item)
                return
            self._items.append((item, size))
            self._bytes += size
            self._condition.notify_all()

    def _fits(self, size: int = 1) -> bool:
        room = self._bytes + size <= self._most_bytes and len(self._items) < self._most
        return room or not self._items


class RunningAhead(Running, DataPipe):
    """A pipe with one thread per pass, which a subclass starts in ``__iter__``."""

    running: ClassVar[tuple[str, ...]] = ("_ahead",)
    _ahead: BackgroundIterator | None

    def fresh(self) -> None:
        self._ahead = None

    @contextmanager
    def make_ahead(self, **options: Any) -> Iterator[BackgroundIterator]:
        """Have items of the parent made ahead while the context lasts."""
        self._ahead = ahead = BackgroundIterator(self.parent, name=self.form_name, **options)
        try:
            yield ahead
        finally:
            ahead.stop()
            if self._ahead is ahead:
                self._ahead = None

    def reset(self) -> None:
        """End the thread of the pass before; torch calls this when a new one begins."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.stop()

    def pause(self) -> None:
        """Return when no more items are made ahead; finished items can still be read."""
        if self._ahead is not None:
            self._ahead.pause()

    def resume(self) -> None:
        """Go on after :meth:`pause`."""
        if self._ahead is not None:
            self._ahead.resume()

    def shutdown(self) -> None:
        """End the thread, if any, and drop its items; any number of times."""
        self.reset()


class Prefetcher(RunningAhead, SameLength, form="prefetch"):
    """Make items in a thread before they are asked for; nothing else changes.

    Parameters
    ----------
    buffer_size
        Items that are made ahead.
    buffer_bytes
        Bytes that they may take; a single item may take more. One more item can be in the making.

    Notes
    -----
    The thread belongs to the iterator that began it. It ends with the last item, with an error
    (raised after the items before it), or when the iterator is dropped. A copied or unpickled pipe
    begins without items. The global generators of ``random``, NumPy and torch are shared with the
    rest of the program. So draws of earlier functions from them are not repeatable.

    After the voxels of a ``DataLoader2`` whose graph is split, workers make whole batches ahead
    anyway, and this pipe adds nothing. Without workers it makes that many batches ahead, unless
    the chain runs a function of yours or ``Timeout`` watches.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(range(3)).prefetch(2))
    [0, 1, 2]
    """

    traits: ClassVar[Traits] = Traits(per_item=True, ahead=True)

    def __init__(
        self, source_datapipe: Pipe, buffer_size: int = 10, *, buffer_bytes: int = BUFFER_BYTES
    ) -> None:
        super().__init__(source_datapipe)
        self.buffer_size = validate_int("buffer_size", buffer_size, least=1)
        self.buffer_bytes = validate_int("buffer_bytes", buffer_bytes, least=1, unit="bytes")
        self.fresh()

    def change(self) -> Callable[[Any], Any] | None:
        """Return the function that the thread applies to each item; None for none."""
        return None

    def __iter__(self) -> Iterator[Any]:
        limits = {"most": self.buffer_size, "most_bytes": self.buffer_bytes}
        with self.make_ahead(**limits, change=self.change()) as ahead:
            yield from ahead

    def instructions(self) -> tuple[Instruction, ...] | None:
        """Return nothing to do: workers make whole batches ahead."""
        return ()
