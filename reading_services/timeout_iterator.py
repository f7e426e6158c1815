"""An iterator that runs in a thread, so that a wait for it can end."""

from __future__ import annotations

import contextlib
import math
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from ..adapters import Limits
from ..batching.job import NOWHERE, STEP_OF_THREAD, CurrentStep
from ..core.context import RUNNING_PASS, holding
from ..core.locks import timeout_or_none
from ..datapipes.background_iterator import join_threads, note_progress, start_thread
from ..datapipes.tensors import bytes_of
from ..graph import frame_location, frame_pipe
from .memory_budget import PrefetchBudget
from .work import item_timeout

# Timeout for ending threads after an ItemTimeout: the stuck thread has exceeded its limit already.
LATE_SECONDS = 0.1
_ITEM, _ERROR, _END = "item", "error", "end"


class TimeoutIterator(Iterator[Any]):
    """Items of ``source``, each within the time limits; up to ``ahead`` items are prefetched.

    The thread takes one step per request and ends with the iterator. A stuck thread stays, as a
    daemon. Limits of single pipes apply to the step that the thread notes (``seconds_at``), or to a
    pipe in its frames.
    """

    def __init__(
        self,
        source: Iterator[Any],
        limits: Limits,
        ahead: int = 0,
        seconds_at: Callable[[int], float] | None = None,
        ahead_bytes: int = 0,
    ) -> None:
        self._limits = limits
        self._seconds_at = seconds_at
        self._requests: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()
        # The first item of an epoch opens and imports: it has more time, as with workers.
        self._seconds = limits.start + limits.item
        self._ahead, self._in_flight = ahead, 0
        self._room = PrefetchBudget(ahead_bytes, unknown=1)
        self._is_closed = self._late = False
        self._step = CurrentStep()
        self._thread = threading.Thread(
            target=_step, args=(source, self._requests, self._answers, self._step), daemon=True
        )
        start_thread(self._thread)

    def __next__(self) -> Any:
        if self._is_closed:
            raise StopIteration
        note_progress()
        self._ask()
        kind, value = self._answer()
        self._in_flight -= 1
        self._seconds = self._limits.item
        if kind == _ITEM:
            if self._ahead:
                self._room.add(None, bytes_of(value))
                self._room.remove(None)
            return value
        self.close()
        if kind == _ERROR:
            raise value
        raise StopIteration

    def _ask(self) -> None:
        """Request an item, and the items that may be prefetched."""
        while not self._in_flight or (
            self._in_flight <= self._ahead and self._room.has_room(self._in_flight - 1)
        ):
            self._requests.put(True)
            self._in_flight += 1

    def _answer(self) -> tuple[str, Any]:
        end, poll = time.monotonic() + self._seconds, self._limits.poll
        at, since = self._place(), time.monotonic()
        while True:
            rest = end - time.monotonic()
            try:
                wait = rest if poll is None else min(rest, poll)
                return self._answers.get(timeout=timeout_or_none(wait))
            except queue.Empty:
                now = time.monotonic()
            if now >= end:
                self._refuse(f"no batch for {self._seconds:g} s", "item=...")
            if poll is None:
                continue
            now_at = self._place()
            if now_at != at:
                at, since = now_at, now
            elif now - since > now_at[1]:
                event = f"a thread has been at one pipe for more than {now_at[1]:g} s"
                self._refuse(event, "idle=... or at=...")

    def _place(self) -> tuple[tuple[Any, ...], float]:
        """Return the noted step of the thread, or a pipe in its frames, and the time limit."""
        if self._limits.poll is None:
            return (), math.inf
        at = self._step.read()
        if self._seconds_at is not None and at[0] != NOWHERE:
            return at, self._seconds_at(at[0])
        pipe, frames = frame_pipe(sys._current_frames().get(self._thread.ident or 0))
        return ((), math.inf) if pipe is None else ((id(pipe), *frames), self._limits.at(pipe))

    def _refuse(self, event: str, limit: str) -> NoReturn:
        self._late = True
        frame = sys._current_frames().get(self._thread.ident or 0)
        stack = "".join(traceback.format_stack(frame)).rstrip() if frame is not None else "(ended)"
        stack = f"; stack of the thread that makes them:\n{stack}"
        do = f"Raise Timeout({limit}) if this may take longer."
        late = item_timeout(event, do, RUNNING_PASS.read(), stack)
        raise late.at(frame_location(frame)) from None

    def close(self) -> None:
        """End the thread, and wait for it; only briefly after an ItemTimeout."""
        self._is_closed = True
        with contextlib.suppress(queue.Empty):
            while True:  # cancel the requests ahead
                self._requests.get_nowait()
        self._requests.put(False)
        join_threads(self._thread, most=LATE_SECONDS if self._late else math.inf)

    def running_threads(self) -> list[threading.Thread]:
        """Return the thread, if it still runs after :meth:`close`."""
        return [self._thread] if self._is_closed and self._thread.is_alive() else []


def _step(
    source: Iterator[Any],
    requests: queue.SimpleQueue[bool],
    answers: queue.SimpleQueue[tuple[str, Any]],
    step: CurrentStep,
) -> None:
    with holding(STEP_OF_THREAD, step):
        while requests.get():
            try:
                answers.put((_ITEM, next(source)))
            except StopIteration:
                answers.put((_END, None))
            except BaseException as error:  # the consumer raises it
                answers.put((_ERROR, error))
