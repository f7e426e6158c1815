"""Check a data set: open every volume of every case in workers, and report all that is bad.

A file that hangs or ends its reader costs one worker, which is replaced, and one line of the
report. The check itself never stops at a bad file.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np

from ..core import Grid
from ..core.errors import VolumeNotFound, VoxpipeError, WorkerDied
from ..datapipes.iter import OpenVolume, from_cases, from_manifest
from ..graph import is_pipe, traits_of, walk
from ..reading_services.workers.script import WORKER_NAME, not_sent
from ..spatial import LazyPatch, PendingPlan
from ..volumes import (
    Finding,
    Volume,
    custom_backends,
    custom_decoders,
    find_volumes,
    is_volume,
    serve,
)

# A header takes milliseconds; a bucket that answers slowly half a minute.
TIMEOUT = 60.0
# Importing this package takes a second; a busy machine takes ten times that.
_START_TIMEOUT = 60.0
# After it was told to end, a worker has nothing more to do.
_STOP_TIMEOUT = 5.0

Task = tuple[Volume, str, str]
"""A volume, its case and its key."""


@dataclass(frozen=True)
class Report:
    """What a check found."""

    findings: tuple[Finding, ...]
    """One per volume, and one more per case whose volumes do not fit each other."""
    volumes: int = 0
    """How many volumes were looked at."""

    @property
    def bad(self) -> tuple[Finding, ...]:
        """Those with something wrong."""
        return tuple(finding for finding in self.findings if finding.is_bad)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.bad

    def __str__(self) -> str:
        counted = f"{self.volumes} checked, {len(self.bad)} bad"
        return "\n".join([*(str(finding) for finding in self.bad), counted])


def check(
    cases: Any,
    *,
    workers: int = 2,
    voxels: bool = False,
    timeout: float = TIMEOUT,
    progress: Callable[[int, int], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> Report:
    """Open every volume of a data set and report every bad file with its reason.

    Parameters
    ----------
    cases
        A pipe of cases (``list_cases``, ``from_cases``, ``from_manifest``, with or without
        ``open_volume()``), a list of mappings of key to path, a folder or its URL, one volume,
        or the path of a manifest (``.json``).
    workers
        Processes that read.
    voxels
        Whether to read and decode every voxel too. Only this finds damage inside a file.
    timeout
        Longest time for one volume, in seconds; raise it with ``voxels``.
    progress
        ``progress(done, total)`` in volumes.
    storage_options
        For fsspec, where volumes, their folder or the manifest are URLs: credentials, endpoint
        and the like. A pipe of cases brings its own. They never appear in messages.

    Raises
    ------
    VolumeNotFound
        There are no cases at all.

    Examples
    --------
    >>> print(check([{"image": "missing.nii"}], workers=1))  # doctest: +SKIP
    missing/image: VolumeNotFound: there is no file /data/missing.nii. Check the path.
    1 checked, 1 bad
    """
    if workers < 1:
        msg = f"workers is at least 1, got {workers}"
        raise ValueError(msg)
    if not timeout > 0:
        msg = f"timeout is a number of seconds above 0, got {timeout}"
        raise ValueError(msg)
    tasks = list(_tasks(cases, storage_options))
    if not tasks:
        raise _nothing()
    findings = _run(tasks, workers, voxels, timeout, progress or _silent)
    return Report((*findings, *_mismatches(findings)), len(tasks))


def volumes_of(
    cases: Any, storage_options: Mapping[str, Any] | None = None
) -> Iterator[tuple[str, str, Volume]]:
    """Yield case, key and volume of everything that ``check`` takes as cases."""
    for volume, case, key in _tasks(cases, storage_options):
        yield case, key, volume


def _tasks(cases: Any, storage_options: Mapping[str, Any] | None) -> Iterator[Task]:
    pipe: Any = _pipe_of(cases, storage_options)
    given = storage_options or getattr(pipe, "storage_options", None)
    opens = any(traits_of(p).opens for p in walk(pipe))
    for item in pipe if opens else OpenVolume(pipe, storage_options=given):
        for key, value in item.items():
            if isinstance(value, LazyPatch):
                yield value.volume, item.case, key  # type: ignore[misc]


def _pipe_of(cases: Any, storage_options: Mapping[str, Any] | None) -> Any:
    if isinstance(cases, (str, os.PathLike)):
        place = os.fspath(cases)
        if place.lower().endswith(".json"):
            return from_manifest(place, storage_options=storage_options)
        if is_volume(place):
            return from_cases([{"image": place}])
        found = find_volumes(place, storage_options)
        return from_cases([{"case": case, **volumes} for case, volumes in found.items()])
    if is_pipe(cases):
        return cases
    given = list(cases)
    if not given:
        raise _nothing()
    return from_cases(given)


def _nothing() -> VolumeNotFound:
    return VolumeNotFound("there are no cases to check.", do="Check the list or the patterns.")


@dataclass(eq=False)
class _Worker:
    """A process that examines one volume at a time."""

    process: Any
    channel: Connection
    deadline: float
    index: int | None = None
    """Which task it is at, None while it starts or has nothing to do."""


def _run(
    tasks: Sequence[Task],
    workers: int,
    voxels: bool,
    timeout: float,
    progress: Callable[[int, int], None],
) -> list[Finding]:
    found: dict[int, Finding] = {}
    left = deque(range(len(tasks)))
    running: list[_Worker] = []
    progress(0, len(tasks))
    try:
        while len(found) < len(tasks):
            idle = sum(worker.index is None for worker in running)
            while len(running) < workers and idle < len(left):
                running.append(_started(voxels))
                idle += 1
            limit = min(worker.deadline for worker in running) - time.monotonic()
            ready = wait([worker.channel for worker in running], max(0.0, limit))
            for worker in list(running):
                answer = _answer(worker, worker.channel in ready, timeout)
                if answer is None:
                    continue
                if isinstance(answer, Finding) and worker.index is not None:
                    found[worker.index] = answer
                    progress(len(found), len(tasks))
                elif isinstance(answer, str):
                    running.remove(worker)
                    _end(worker)
                    found[_index_of(worker, answer)] = _ended(tasks, worker, answer)
                    progress(len(found), len(tasks))
                    continue
                _give(worker, tasks, left, running, timeout)
    finally:
        for worker in running:
            _end(worker)
    return [found[index] for index in range(len(tasks))]


_READY = object()


def _answer(worker: _Worker, is_ready: bool, timeout: float) -> Any:
    """Return a finding, ``_READY``, in words why the worker is lost, or None for nothing yet."""
    if is_ready:
        try:
            answer = worker.channel.recv()
        except (EOFError, OSError):
            return "its reader died, out of memory or in a library"
        return _READY if answer is None else answer
    if time.monotonic() >= worker.deadline:
        return f"nothing came within {timeout:g} s"
    return None


def _give(
    worker: _Worker, tasks: Sequence[Task], left: deque[int], running: list[_Worker], timeout: float
) -> None:
    """Give the next task, or let a worker go that is not needed any more."""
    if not left:
        running.remove(worker)
        _end(worker)
        return
    worker.index = left.popleft()
    worker.deadline = time.monotonic() + timeout
    # That it is gone is noticed where its answer is taken.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        worker.channel.send(tasks[worker.index])


def _started(voxels: bool) -> _Worker:
    context = get_context("forkserver")
    ours, theirs = context.Pipe(duplex=True)
    process = context.Process(
        target=serve,
        args=(theirs, voxels, custom_backends(), custom_decoders()),
        name=f"{WORKER_NAME}-check",
        daemon=True,
    )
    # What the user registered may be defined in the script; else that is not needed.
    own = custom_backends() or custom_decoders()
    with contextlib.nullcontext() if own else not_sent():
        process.start()
    theirs.close()
    return _Worker(process, ours, time.monotonic() + _START_TIMEOUT)


def _end(worker: _Worker) -> None:
    with contextlib.suppress(OSError):
        worker.channel.send(None)
    worker.channel.close()
    if worker.index is not None and time.monotonic() >= worker.deadline:
        worker.process.kill()
    worker.process.join(_STOP_TIMEOUT)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()
    worker.process.close()


def _index_of(worker: _Worker, why: str) -> int:
    if worker.index is None:
        raise WorkerDied(
            f"a process that was to check volumes did not start: {why}.",
            do="See what it wrote to the terminal.",
        )
    return worker.index


def _ended(tasks: Sequence[Task], worker: _Worker, why: str) -> Finding:
    volume, case, key = tasks[worker.index or 0]
    kind = "ItemTimeout" if "within" in why else "WorkerDied"
    return Finding(case, key, volume.name, kind, f"{volume.name} cannot be read: {why}.")


@dataclass(frozen=True)
class _Placed:
    """Where a volume lies, as far as the check of a case goes."""

    name: str
    grid: Grid


def _mismatches(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield one finding per case whose sound volumes do not lie on one grid."""
    for case, group in groupby(findings, key=lambda finding: finding.case):
        placed: Mapping[str, Any] = {
            f.key: _Placed(f.name, Grid(f.shape[1:], np.reshape(f.affine, (4, 4))))
            for f in group
            if f.shape is not None and f.affine is not None
        }
        if not placed:
            continue
        try:
            PendingPlan(placed).shared_grid  # noqa: B018  asking is what checks
        except VoxpipeError as error:
            yield Finding.of_error(error, case, "+".join(placed), case)


def _silent(done: int, total: int) -> None:
    """Show nothing."""
