"""A thread that takes the items of a pipe before they are asked for, a bounded number of them.

The thread belongs to the iterator that began it, and ends with it: at the last item, at an error,
or when the iterator is dropped. In the words of a contract:

- finished or failed: the thread has ended by itself; the error comes when all items made before
  it were taken, as the very same object.
- abandoned: :meth:`Ahead.stop` tells the thread to end and waits for it, because what it
  reads from may be read by somebody else next. It cannot be interrupted within an item; if that
  takes longer than it may (:mod:`.leaving`) a warning says so, and the thread ends after that item.
- paused: it takes no further item until it is resumed.

A forked child has no threads: using an ``Ahead`` of its parent there is an error, not a hang.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from torch.utils.data.datapipes.utils.common import StreamWrapper

from ..core.errors import PrefetchTimeoutError
from ..core.locks import timeout_or_none
from .tensors import bytes_of
from .thread_shutdown import going_on, wait_for, warn_of

# An item that takes longer to make is worth a word when it holds up a pause.
PAUSE_SECONDS = 30.0


class Ended(Exception):
    """All items were taken."""


class Ahead:
    """Items of a pipe, made ahead by a thread.

    Parameters
    ----------
    source
        What the thread iterates.
    most
        Items that are made ahead, at most.
    most_bytes
        Bytes that they take, at most, unless a single one takes more.
    change
        Applied to each item by the thread.
    name
        Of the thread.
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
        self._changed = threading.Condition()
        self._held: deque[tuple[Any, int]] = deque()
        self._bytes = 0
        self._error: BaseException | None = None
        self._ended = self._stopped = self._abandoned = self._paused = self._making = False
        self._process = os.getpid()
        target, arguments = self._run, (source, change)
        self._thread = threading.Thread(target=target, args=arguments, name=name, daemon=True)
        self._thread.start()

    def take(self, timeout: float = float("inf")) -> Any:
        """Return the next item.

        Raises
        ------
        Ended
            There is none.
        PrefetchTimeoutError
            None came within ``timeout`` seconds.
        RuntimeError
            It is paused and nothing is left; or this is a forked child of the process whose
            thread it was.
        """
        self._refuse_child()
        going_on()
        with self._changed:
            if not self._changed.wait_for(self._is_settled, timeout_or_none(timeout)):
                raise PrefetchTimeoutError(timeout)
            if self._held:
                item, size = self._held.popleft()
                self._bytes -= size
                self._changed.notify_all()
                return item
            if self._ended:
                error, self._error = self._error, None
                raise Ended if error is None else error
        msg = "prefetch is paused and everything made before was taken; call resume() first"
        raise RuntimeError(msg)

    def pause(self, timeout: float = PAUSE_SECONDS) -> None:
        """Return when the thread takes no further item.

        Raises
        ------
        PrefetchTimeoutError
            The item at hand took longer than ``timeout`` seconds.
        """
        self._refuse_child()
        with self._changed:
            self._paused = True
            if not self._changed.wait_for(lambda: not self._making or self._ended, timeout):
                raise PrefetchTimeoutError(timeout)

    def resume(self) -> None:
        """Let the thread go on."""
        with self._changed:
            self._paused = False
            self._changed.notify_all()

    def abandon(self) -> None:
        """Tell the thread to end, and do not wait for it: not here, and not in :meth:`stop`.

        For whoever has waited for the item at hand already.
        """
        with self._changed:
            self._stopped = self._abandoned = True
            self._changed.notify_all()

    def stop(self) -> None:
        """End the thread, and drop what it made; any number of times."""
        if os.getpid() != self._process:
            return
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if not self._abandoned and wait_for(self._thread) is not None:
            self.abandon()
            warn_of(self._thread.name)
        while self._held:
            StreamWrapper.close_streams(self._held.popleft()[0])

    def left(self) -> threading.Thread | None:
        """Return the thread as long as it runs."""
        return self._thread if self._thread.is_alive() else None

    def _refuse_child(self) -> None:
        if os.getpid() != self._process:
            msg = "this iterator was begun before a fork, and its thread is in the other process; "
            raise RuntimeError(msg + "iterate the pipe anew in this one")

    def _is_settled(self) -> bool:
        return bool(self._held) or self._ended or (self._paused and not self._making)

    def _run(self, source: Iterable[Any], change: Callable[[Any], Any] | None) -> None:
        error: BaseException | None = None
        try:
            if self._may_make():
                self._fill(source, change)
        except BaseException as raised:  # SystemExit as well: it is the consumer's to handle
            error = raised
        with self._changed:
            self._error, self._ended, self._making = error, True, False
            self._changed.notify_all()

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
        with self._changed:
            self._making = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._stopped or (not self._paused and self._has_room()))
            self._making = not self._stopped
            return self._making

    def _has_room(self) -> bool:
        return not self._held or (len(self._held) < self._most and self._bytes < self._most_bytes)

    def _put(self, item: Any) -> None:
        """Add an item once it fits; one alone always does."""
        size = bytes_of(item)
        with self._changed:
            self._making = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._stopped or self._fits(size))
            if self._stopped:
                StreamWrapper.close_streams(item)
                return
            self._held.append((item, size))
            self._bytes += size
            self._changed.notify_all()

    def _fits(self, size: int) -> bool:
        return not self._held or self._bytes + size <= self._most_bytes
