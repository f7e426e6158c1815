"""Figures of a running loader: as numbers for loggers, and as a live table while training."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO
from weakref import WeakKeyDictionary

from ...core.memory import resident_bytes
from ...core.progress import DRAWING, in_notebook
from ...core.settings import bytes_text
from ...core.validate import is_number
from .html import box, table

EVERY_SECONDS = 1.0
"""Time between two tables on a terminal or in a notebook."""
LOG_SECONDS = 60.0
"""Time between two lines in a log file."""
KEEPS_UP = 0.05
"""Share of waiting below which the step limits, and not the loader."""
_MOSTLY = 0.5  # Share of the time from which on the loader limits.
_LONG_WAIT = 3.0  # Seconds without a batch that are worth a line.
_BAR = 24  # characters
_RECENT = 10  # tables over which rates are taken


@dataclass(frozen=True)
class Snapshot:
    """Counts of a loader at one moment."""

    moment: float
    batches: int
    wait: float

    @classmethod
    def of(cls, loader: Any) -> Snapshot:
        """Take one."""
        stats = loader.stats()
        return cls(time.perf_counter(), stats.batches, stats.wait)


_LAST: WeakKeyDictionary[Any, Snapshot] = WeakKeyDictionary()  # of the calls of metrics()


def metrics(loader: Any) -> dict[str, float]:
    """Return the present figures of a loader as numbers, for any logger of experiments.

    Rate and share of waiting are those since the last call; those of the whole run at first.

    Returns
    -------
    dict
        ``loader/epoch``, ``loader/batch`` (the next one) and ``loader/batches`` (delivered). Also
        ``loader/batches_per_second``, ``loader/waiting_share`` (0 to 1), ``loader/step_seconds``,
        ``loader/longest_wait_seconds`` and ``loader/memory_bytes``. Errors that ``OnError`` let
        pass are in ``loader/failures``, and by class in ``loader/failures/NAME``.
    """
    before = _LAST.get(loader)
    _LAST[loader] = Snapshot.of(loader)
    return figures_since(loader, before)


def figures_since(loader: Any, before: Snapshot | None) -> dict[str, float]:
    """Return the figures of a loader; rates since a snapshot, or of the whole run."""
    stats = loader.stats()
    rate, share = _rate_and_share(stats, before)
    figures: dict[str, float] = {
        "loader/epoch": stats.epoch,
        "loader/batch": stats.next_batch,
        "loader/batches": stats.batches,
        "loader/batches_per_second": rate,
        "loader/waiting_share": share,
        "loader/longest_wait_seconds": stats.longest,
        "loader/step_seconds": stats.step_time or 0.0,
        "loader/failures": sum(stats.failures.values()),
        "loader/memory_bytes": sum(memory_bytes()),
    }
    return figures | {f"loader/failures/{name}": n for name, n in stats.failures.items()}


def _rate_and_share(stats: Any, before: Snapshot | None) -> tuple[float, float]:
    """Return batches per second, and the share of the time that was spent waiting for them."""
    count = stats.batches - (before.batches if before else 0)
    wait = stats.wait - (before.wait if before else 0.0)
    if before is not None:
        seconds = max(time.perf_counter() - before.moment, wait, 1e-9)
    else:
        seconds = wait + count * (stats.step_time or 0.0)
    return (count / seconds, min(1.0, wait / seconds)) if count and seconds > 0 else (0.0, 0.0)


def memory_bytes() -> tuple[int, int]:
    """Return the memory of this process, and the private memory of its children, in bytes."""
    children = 0
    for pid in _descendants(os.getpid()):
        try:
            _, resident, common, *_ = Path(f"/proc/{pid}/statm").read_text().split()
        except (OSError, ValueError):  # it ended, or this is not Linux
            continue
        children += (int(resident) - int(common)) * os.sysconf("SC_PAGE_SIZE")
    return resident_bytes(), children


def _descendants(pid: int) -> Iterator[int]:
    for file in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(text) for text in file.read_text().split()]
        except (OSError, ValueError):
            continue
        for child in children:
            yield child
            yield from _descendants(child)


def limit_of(loader: Any, share: float) -> str:
    """Return the limit of a loader: the step, or the part that the last diagnosis named."""
    if share < KEEPS_UP:
        return "your step: the loader keeps up"
    if share < _MOSTLY:
        return f"your step; waiting for the loader adds {share / (1 - share):.0%}"
    if limit := getattr(loader.measurement, "limit", ""):
        return f"the loader, {limit} of it"
    pipes = loader.stats().pipes
    if pipes:
        slowest = max(pipes, key=lambda row: row["seconds"])
        return f"the loader; the slowest pipe is {slowest['pipe']}"
    return "the loader; loader.diagnose() names the part"


def watch(loader: Any, *, every: float = EVERY_SECONDS) -> Watch:
    """Show a live table of a loader while it is iterated.

    The table has the rate, the share of waiting, the limit, failures and memory. A terminal and
    a notebook show it in place. A log file gets a line each minute, and one at the end.

    Parameters
    ----------
    loader
        A ``DataLoader2``.
    every
        Seconds between two tables.

    Returns
    -------
    Watch
        Iterate over it in place of the loader. Or use it as ``with vp.watch(loader):`` around the
        loop of a framework.

    Raises
    ------
    TypeError
        It is no ``DataLoader2``.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> from voxpipe import DataLoader2
    >>> [batch for batch in watch(DataLoader2(IterableWrapper([1, 2])))]
    [1, 2]
    """
    if not hasattr(loader, "stats"):
        msg = f"watch() shows a DataLoader2, got {type(loader).__name__}: vp.DataLoader2(pipe)"
        raise TypeError(msg)
    if not is_number(every) or not every > 0:
        raise ValueError(f"every is a number of seconds above 0, got {every!r}")
    return Watch(loader, every)


class Watch:
    """A loader with a live table; iterate over it, or use it around a loop."""

    def __init__(self, loader: Any, every: float = EVERY_SECONDS) -> None:
        self.loader = loader
        self._every = every
        self._length: int | None = None
        self._first = Snapshot.of(loader)
        self._recent: deque[Snapshot] = deque([self._first], maxlen=_RECENT)
        self._draws = self._is_over = False
        self._since: float | None = None  # when a batch was asked for that has not come
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._screen: _Screen | None = None

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        with self:
            batches = iter(self.loader)
            while True:
                self._since = time.perf_counter()
                try:
                    batch = next(batches)
                except StopIteration:
                    self._is_over = True
                    return
                finally:
                    self._since = None
                yield batch
                del batch

    def __enter__(self) -> Watch:
        try:
            self._length = len(self.loader)
        except (TypeError, NotImplementedError):
            self._length = None
        self._first = Snapshot.of(self.loader)
        self._recent = deque([self._first], maxlen=_RECENT)
        self._draws = DRAWING.acquire(blocking=False)  # no other line is drawn meanwhile
        self._screen, self._stop, self._is_over = _screen(), threading.Event(), False
        if self._screen is not None:
            args = (self._stop, self._screen)
            self._thread = threading.Thread(
                target=self._run, args=args, daemon=True, name="voxpipe-watch"
            )
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._screen is not None:
            self._screen.show(self.rows(self._first), is_last=True)
            self._screen = None
        if self._draws:
            self._draws = False
            DRAWING.release()

    def _run(self, stop: threading.Event, screen: _Screen) -> None:
        while not stop.wait(max(self._every, screen.least_seconds)):
            screen.show(self.rows(self._recent[0]))
            self._recent.append(Snapshot.of(self.loader))

    def metrics(self) -> dict[str, float]:
        """Return the figures of the run so far, as ``loader.metrics()``."""
        return figures_since(self.loader, self._first)

    def rows(self, before: Snapshot | None = None) -> list[tuple[str, str]]:
        """Return the rows of the table; rates since a snapshot, by default since the start."""
        count = self.loader.stats().batches
        if before is None or count == before.batches:
            before = self._first
        figures = figures_since(self.loader, before)
        share, batch = figures["loader/waiting_share"], int(figures["loader/batch"])
        progress = f"batch {batch} of epoch {int(figures['loader/epoch'])}"
        rate = figures["loader/batches_per_second"]
        if self._is_over and not batch:
            progress = f"epoch {int(figures['loader/epoch']) - 1}, all batches"
        elif self._length and batch <= self._length:
            bar = "█" * round(_BAR * batch / self._length)
            rest = f", {(self._length - batch) / rate:.0f} s left" if rate else ""
            progress = f"{progress}  {bar:░<{_BAR}} {batch / self._length:.0%}{rest}"
        step = figures["loader/step_seconds"]
        step_text = f"; your step {1e3 * step:.1f} ms" if step else ""
        longest = f", {figures['loader/longest_wait_seconds']:.2g} s at most"
        since = self._since
        waits = time.perf_counter() - since if since is not None else 0.0
        limit = limit_of(self.loader, share) if count else "no batch yet"
        if waits > _LONG_WAIT:
            limit = f"the loader: no batch for {waits:.0f} s"
        errors = {k.rpartition("/")[2]: v for k, v in figures.items() if k.count("/") == 2}
        failures = ", ".join(f"{count:g} {name}" for name, count in errors.items()) or "none"
        own, others = memory_bytes()
        workers = f", {bytes_text(others)} in workers" if others else ""
        return [
            ("progress", progress),
            ("rate", f"{rate:.3g} batches/s"),
            ("waiting", f"{share:.0%} of the time{longest}{step_text}"),
            ("limit", limit),
            ("failures", failures),
            ("memory", f"{bytes_text(own)} here{workers}"),
        ]

    def __str__(self) -> str:
        return "\n".join(f"{name:<9} {text}" for name, text in self.rows())

    def _repr_html_(self) -> str:
        return box(table(self.rows()))


class _Screen:
    """A place that shows a table again and again."""

    least_seconds = 0.0

    def show(self, rows: list[tuple[str, str]], *, is_last: bool = False) -> None:
        raise NotImplementedError


class _Terminal(_Screen):
    """Lines on a terminal, which the next table overwrites."""

    def __init__(self, file: TextIO) -> None:
        self._file, self._height = file, 0

    def show(self, rows: list[tuple[str, str]], *, is_last: bool = False) -> None:
        width = shutil.get_terminal_size().columns
        lines = [f"{name:<9} {text}"[: width - 1] for name, text in rows]
        back = f"\x1b[{self._height}F\x1b[J" if self._height else ""
        self._file.write(back + "\n".join(lines) + "\n")
        self._file.flush()
        self._height = len(lines)


class _Log(_Screen):
    """One line for each table, in a file without a cursor."""

    least_seconds = LOG_SECONDS

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def show(self, rows: list[tuple[str, str]], *, is_last: bool = False) -> None:
        facts = dict(rows)
        progress = facts.pop("progress").partition("  ")[0]
        line = "; ".join([progress, *(f"{name} {text}" for name, text in facts.items())])
        self._file.write(f"voxpipe: {line}\n")
        self._file.flush()


class _Notebook(_Screen):
    """An output of a cell, which the next table replaces."""

    def __init__(self) -> None:
        outputs: Any = importlib.import_module("IPython.display")  # its functions have no types
        self._html = outputs.HTML
        self._handle = outputs.display(outputs.HTML(""), display_id=True)

    def show(self, rows: list[tuple[str, str]], *, is_last: bool = False) -> None:
        self._handle.update(self._html(box(table(rows))))


def _screen() -> _Screen | None:
    """Return where tables are shown: a notebook, a terminal, or a log file; None without stderr."""
    if in_notebook():
        return _Notebook()
    if sys.stderr is None:
        return None
    return _Terminal(sys.stderr) if sys.stderr.isatty() else _Log(sys.stderr)
