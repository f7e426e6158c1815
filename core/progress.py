"""Progress of long work: one line on stderr, after two seconds, in a terminal or a notebook."""

from __future__ import annotations

import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing import parent_process
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Show = Callable[..., None]
"""``show(count, total, text="")``: number of parts, all of them (0 if unknown), present work."""

DELAY = 2.0
"""Seconds before the line is drawn: short work stays silent."""
EVERY = 0.5
"""Seconds between two lines, which also count the time of work that reports nothing."""
_WIDTH = 78  # characters
DRAWING = threading.Lock()
"""Held while something draws on stderr: the outermost work, or the live table of a loader."""


@contextmanager
def progress_line(
    name: str, unit: str = "", show: Show | None = None, text: Callable[[], str] = str
) -> Iterator[Show]:
    """Draw the progress of the work inside the ``with`` block; its value is a :data:`Show`.

    ``show`` replaces the line. ``text()`` names the present work where the block does not. Work
    inside other work, in worker processes and without a terminal or notebook draws nothing.
    """
    if show is not None or not _is_seen() or not DRAWING.acquire(blocking=False):
        yield lambda count, total, text="": show(count, total) if show else None
        return
    try:
        line = _Line(name, unit, text)
        thread = threading.Thread(target=line.run, daemon=True)
        thread.start()
        try:
            yield line.show
        finally:
            line.stop.set()
            thread.join()
    finally:
        DRAWING.release()


def shows_progress(name: str, unit: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Let a function with the argument ``progress`` draw a line if it has none."""

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def run(*args: P.args, **kwargs: P.kwargs) -> T:
            own: Any = kwargs.get("progress")
            with progress_line(name, unit, own) as show:
                kwargs["progress"] = show
                return function(*args, **kwargs)

        return run

    return decorate


def _is_seen() -> bool:
    """Whether somebody sees stderr while it is written: a terminal or a notebook."""
    if sys.stderr is None or parent_process() is not None:
        return False
    return sys.stderr.isatty() or in_notebook()


def in_notebook() -> bool:
    """Whether a notebook shows the output of this process."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return hasattr(shell, "kernel")


class _Line:
    """The line of one work, drawn by a thread of its own."""

    def __init__(self, name: str, unit: str, text: Callable[[], str]) -> None:
        self._name, self._unit, self._text_of = name, unit, text
        self._count, self._total, self._text = 0, 0, ""
        self._start = time.monotonic()
        self.stop = threading.Event()

    def show(self, count: int, total: int, text: str = "") -> None:
        """Note the present state; the thread draws it."""
        self._count, self._total, self._text = count, total, text

    def run(self) -> None:
        """Draw the line until the work ends, and clear it."""
        delay = DELAY
        while not self.stop.wait(delay):
            sys.stderr.write(f"\r{self.line():{_WIDTH}.{_WIDTH}}")
            sys.stderr.flush()
            delay = EVERY
        if delay == EVERY:
            sys.stderr.write(f"\r{'':{_WIDTH}}\r")
            sys.stderr.flush()

    def line(self) -> str:
        """Return the name, the count, the time left and the present work."""
        seconds = time.monotonic() - self._start
        count = f" {self._count}" if self._count else ""
        if self._total:
            rest = seconds * (self._total - self._count) / self._count if self._count else 0.0
            count = f" {self._count} of {self._total} {self._unit}".rstrip()
            count += f", {rest:.0f} s left" if rest else ""
        text = self._text or self._text_of()
        return f"{self._name}:{count}{f' {text}' if text else ''} ({seconds:.0f} s)"
