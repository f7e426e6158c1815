"""Check a data set: open every volume of every case in workers, and report all that is bad.

A file that hangs or ends its reader costs one worker, which is replaced, and one line of the
report. The check itself never stops at a bad file.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import chain, groupby, islice
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from types import SimpleNamespace
from typing import Any

import numpy as np

from ..core import Grid, Viewable
from ..core.call_site import looking_ahead, warn
from ..core.errors import (
    GraphError,
    LikelyLabel,
    MissingDependency,
    SampleError,
    VoxpipeError,
    WorkerDied,
)
from ..core.progress import shows_progress
from ..core.redact import public_name
from ..core.suggest import few_names, looks_like_label
from ..datapipes.case_lists import is_manifest, no_cases, pipe_of
from ..datapipes.case_names import CASE
from ..datapipes.cases import FromCases, ListCases, hold_listings
from ..datapipes.iter import OpenVolume
from ..datapipes.open_volume import LABELS
from ..graph import find, is_pipe, parents_of, replace_pipe, traits_of, walk
from ..reading_services.workers.script import WORKER_NAME, preparing
from ..reading_services.workers.worker_process import without_signals
from ..spatial import LazyPatch, TransformChain
from ..storage.location import absolute_place
from ..volumes import (
    Entry,
    Finding,
    PartialIndex,
    Volume,
    cases_without_label,
    custom_backends,
    custom_decoders,
    describe_each,
    entries_of,
    read_manifest,
    serve,
    write_entries,
)
from ..volumes.axis_map import refuse_other_order

# A header takes milliseconds; a bucket that answers slowly half a minute.
TIMEOUT = 60.0
# Importing this package takes a second; a busy machine takes ten times that.
_START_TIMEOUT = 60.0
# A worker that is stopped has nothing more to do.
_STOP_TIMEOUT = 5.0
_MOST_IN_JSON = 50_000  # volumes of a manifest that is JSON by default
_NO_UNIT = " (no unit of length)"
_MOST_LENGTHS = 1000  # sizes of voxels of a key that a report names

Task = tuple[Volume, str, str]  # a volume, its case and its key


@dataclass(frozen=True)
class CheckReport(Viewable):
    """The findings of a check."""

    findings: tuple[Finding, ...]
    """One per volume, and one more per case whose volumes do not fit each other."""
    volumes: int = 0
    """How many volumes were looked at."""
    likely_labels: tuple[str, ...] = ()
    """Keys that look like labels, and count as images since no ``labels=`` was given."""
    labels: tuple[str, ...] = ()
    lengths: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """First volume of each size of voxels in the unit of the files, by key; at most 1000."""
    size: tuple[int, int] = (0, 0)  # cases and volumes in the written manifest
    manifest: str = ""  # its path or URL

    @property
    def bad(self) -> tuple[Finding, ...]:
        """Those with something wrong."""
        return tuple(finding for finding in self.findings if finding.is_bad)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.bad

    def __str__(self) -> str:
        summary = f"{self.volumes} checked, {len(self.bad)} bad"
        lines = [
            f"{key}: {few_names(f'{size} ({name})' for size, name in every.items())}"
            if len(every) > 1
            else f"{key}: {next(iter(every))}"
            for key, every in self.shown_lengths.items()
        ]
        return "\n".join([*(str(finding) for finding in self.bad), *lines, summary])

    @property
    def shown_lengths(self) -> Mapping[str, Mapping[str, str]]:
        """First volume of each size of voxels, of the keys that have several sizes, or a unit."""
        keys = self.lengths.items()
        has_unit = {key: not all(size.endswith(_NO_UNIT) for size in each) for key, each in keys}
        return {key: each for key, each in keys if len(each) > 1 or has_unit[key]}


@shows_progress("check", "volumes")
def check(
    cases: Any,
    *,
    num_workers: int = 2,
    voxels: bool = False,
    timeout: float = TIMEOUT,
    labels: Collection[str] = LABELS,
    progress: Callable[[int, int], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    only_bad: bool = False,
    **reader_kwargs: Any,
) -> CheckReport:
    """Open every volume of a data set and report every bad file with its reason.

    Parameters
    ----------
    cases
        A pipe of cases: ``list_cases``, ``from_cases``, ``from_manifest``, with or without
        ``open_volume()``. Or a list of mappings of key to path, a folder or its URL, or one
        volume. A glob names folders, or volumes (``image=`` of ``list_cases``). A path names a
        manifest (``.json``, ``.parquet``) or a table, as of ``from_table``. Tables end in ``.csv``,
        ``.tsv`` or ``.jsonl``.
    num_workers
        Processes that read.
    voxels
        Whether to read and decode every voxel too. Only this finds damage inside a file.
    timeout
        Longest time for one volume, in seconds. Raise it with ``voxels``.
    labels
        Keys that hold labels, if the cases are not opened yet. Unless you give it, another key
        that looks like a label brings a warning. It is a ``LikelyLabel``.
    progress
        ``progress(done, total)`` in volumes. By default a terminal shows a line.
    storage_options
        For fsspec, where volumes, their folder or the manifest are URLs. They hold credentials,
        endpoint and the like. A pipe of cases brings its own. They never appear in messages.
    only_bad
        Whether the report lacks the findings of sound volumes. Its memory then does not grow with
        the number of volumes.
    **reader_kwargs
        For the backend, as of ``open_volume()``, where the cases are not opened yet.

    Raises
    ------
    VolumeNotFound
        There are no cases at all.

    Examples
    --------
    >>> print(check([{"image": "missing.nii"}], num_workers=1))  # doctest: +SKIP
    missing/image: VolumeNotFound: there is no file /data/missing.nii. Check the path.
    1 checked, 1 bad
    """
    if num_workers < 1:
        raise ValueError(f"num_workers is at least 1, got {num_workers}")
    if not timeout > 0:
        raise ValueError(f"timeout is a number of seconds above 0, got {timeout}")
    volumes, missing = _volumes_and_gaps(cases, storage_options, labels, reader_kwargs)
    count, kinds = _kinds_of(volumes)
    keys = _keys_of_labels(cases, kinds, labels)
    tasks = ((volume, case, key) for case, key, volume in volumes)
    findings: list[Finding] = []
    apart: list[Finding] = []
    lengths: dict[str, dict[str, str]] = {}
    firsts: dict[str, Finding] = {}
    run = _run(tasks, count, num_workers, voxels, timeout, progress)
    for case, group in groupby(run, key=lambda finding: finding.case):
        of_case = [*group]
        findings += [one for one in of_case if one.is_bad or not only_bad]
        apart += _mismatches(case, of_case)
        for one in of_case:
            apart += _other_order(one, firsts)
            sizes = lengths.setdefault(one.key, {}) if one.affine is not None else {}
            if len(sizes) < _MOST_LENGTHS and one.affine is not None:
                sizes.setdefault(one.lengths or _without_unit(one.affine), one.name)
    return CheckReport((*findings, *missing, *apart), count, *keys, lengths)


def _without_unit(affine: Sequence[float]) -> str:
    lengths = np.linalg.norm(np.reshape(affine, (4, 4))[:3, :3], axis=0)
    return f"{' x '.join(f'{length:.6g}' for length in lengths)}{_NO_UNIT}"


def volumes_of(
    cases: Any, storage_options: Mapping[str, Any] | None = None
) -> list[tuple[str, str, Volume]]:
    """Return case, key and volume of everything that :func:`check` takes as cases."""
    return [*_volumes_and_gaps(cases, storage_options, LABELS, {})[0]]


def _volumes_and_gaps(
    cases: Any,
    storage_options: Mapping[str, Any] | None,
    labels: Collection[str],
    reader_kwargs: Mapping[str, Any],
) -> tuple[Iterable[tuple[str, str, Volume]], list[Finding]]:
    """Return the volumes of :func:`volumes_of`, and a finding for each that a case lacks.

    Volumes of our sources are made in each iteration, and not held.
    """
    pipe: Any = pipe_of(cases, storage_options)
    missing: list[Finding] = []
    if isinstance(cases, (str, os.PathLike)) and isinstance(pipe, FromCases):
        by_name = {  # numbers and lists of channels travel along in a table
            name: {key: place for key, place in case.items() if isinstance(place, str)}
            for name, case in pipe.each_case()
        }
        for name, key in cases_without_label(by_name, labels):
            msg = f"case {name} has no {key!r}, and most cases beside it have one. Add the file."
            missing.append(Finding.of_missing(name, key, labels, msg))
    for listing in find(pipe, ListCases):
        lenient = listing.lenient()
        for case in lenient.listing():
            for key, error in listing.missing(case).items():
                msg = f"{error.message}. Add the file, or narrow the pattern."
                missing.append(Finding.of_missing(case[CASE], key, labels, msg))
        pipe = replace_pipe(pipe, listing, lenient)
    # If the user has not opened the volumes, errors name the called function.
    quiet: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext
    if not _is_opened(pipe):
        options = storage_options or getattr(pipe, "storage_options", None)
        pipe = OpenVolume(pipe, storage_options=options, labels=labels, **reader_kwargs)
        quiet = looking_ahead
    volumes = _Volumes(hold_listings(pipe), quiet)
    sources = [one for one in walk(pipe) if not parents_of(one)]
    is_ours = all(hasattr(type(one), "data_texts") for one in sources)
    return volumes if is_ours else [*volumes], missing


_ITEMS = 256  # of a pipe that are made at once


@dataclass(frozen=True)
class _Volumes:
    """Case, key and volume of the items of a pipe, made in each iteration."""

    pipe: Any
    quiet: Callable[[], contextlib.AbstractContextManager[Any]]

    def __iter__(self) -> Iterator[tuple[str, str, Volume]]:
        items = iter(self.pipe)
        while True:
            with self.quiet():  # not around a yield
                some = [*islice(items, _ITEMS)]
            if not some:
                return
            for item in some:
                for key, value in item.items():
                    if isinstance(value, LazyPatch):
                        yield item.case, key, value.volume


def _kinds_of(volumes: Iterable[tuple[str, str, Volume]]) -> tuple[int, dict[str, str]]:
    """Return the number of volumes, and the kind of those of each key."""
    count, kinds = 0, {}
    for _, key, volume in volumes:
        count += 1
        kinds[key] = volume.kind
    if not count:
        raise no_cases()
    return count, kinds


def _is_opened(cases: Any) -> bool:
    return is_pipe(cases) and any(traits_of(pipe).opens for pipe in walk(cases))


def _keys_of_labels(
    cases: Any, kinds: Mapping[str, str], labels: Collection[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the keys of images that look like labels, each with a warning, and those of labels.

    Nothing is guessed if the user has named the labels, or opened the volumes: that pipe warns.
    """
    sure = tuple(key for key, kind in kinds.items() if kind == "label")
    if labels is not LABELS or _is_opened(cases):
        return (), sure
    likely = tuple(k for k, kind in kinds.items() if kind != "label" and looks_like_label(k))
    for key in likely:
        text = (
            f"{key!r} looks like a label, and counts as an image\n"
            f"  If it holds classes, give ⟦labels={(*sure, *likely)!r}⟧, or a Volume its kind. "
            "If not, give ⟦labels=⟧ without it: then nothing is guessed."
        )
        warn(text, LikelyLabel)
    return likely, sure


@dataclass(eq=False)
class _CheckProcess:
    process: Any
    channel: Connection
    deadline: float
    task: Task | None = None  # None while it starts
    index: int = 0  # number of the task


def _run(
    tasks: Iterator[Task],
    count: int,
    workers: int,
    voxels: bool,
    timeout: float,
    progress: Callable[[int, int], None] | None,
) -> Iterator[Finding]:
    """Yield the findings of tasks in order; hold those that wait for an earlier one."""
    findings: dict[int, Finding] = {}
    numbers = itertools.count()
    answers = first = 0  # findings, and the first task without one
    running: list[_CheckProcess] = []
    is_over = False  # whether there are no more tasks
    show = progress or (lambda number, total: None)
    show(0, count)
    try:
        while answers < count:
            if is_over and not running:
                msg = f"the pipe yielded {count} volumes at first, and {answers} later"
                raise GraphError(msg, do="Give a pipe that yields the same ones in each pass.")
            while not is_over and len(running) < min(workers, count - answers):
                running.append(_start(voxels))
            limit = min(worker.deadline for worker in running) - time.monotonic()
            ready = wait([worker.channel for worker in running], max(0.0, limit))
            for worker in list(running):
                if worker.channel not in ready and time.monotonic() < worker.deadline:
                    continue
                finding, is_lost = _answer(worker, worker.channel in ready, timeout)
                if finding is not None:
                    findings[worker.index] = finding
                    answers += 1
                    show(answers, count)
                task = None if is_lost else next(tasks, None)
                if task is None:
                    is_over = is_over or not is_lost
                    running.remove(worker)
                    _end(worker)
                    continue
                worker.task, worker.index = task, next(numbers)
                worker.deadline = time.monotonic() + timeout
                # That it is gone is noticed where its answer is taken.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    worker.channel.send(task)
            while first in findings:
                yield findings.pop(first)
                first += 1
    finally:
        for worker in running:
            _end(worker)


def _answer(worker: _CheckProcess, is_ready: bool, timeout: float) -> tuple[Finding | None, bool]:
    """Return a worker's finding, None when it has started, and whether it is lost."""
    kind, why = "ItemTimeout", f"nothing came within {timeout:g} s"
    if is_ready:
        try:
            return worker.channel.recv(), False
        except (EOFError, OSError):
            kind, why = "WorkerDied", "its reader died, out of memory or in a library"
    if worker.task is None:
        msg = f"a process that was to check volumes did not start: {why}."
        raise WorkerDied(msg, do="See what it wrote to the terminal.")
    volume, case, key = worker.task
    return Finding(case, key, volume.name, kind, f"{volume.name} cannot be read: {why}."), True


def _start(voxels: bool) -> _CheckProcess:
    context = get_context("forkserver")
    ours, theirs = context.Pipe(duplex=True)
    process = context.Process(
        target=serve,
        args=(theirs, voxels, custom_backends(), custom_decoders()),
        name=f"{WORKER_NAME}-check",
        daemon=True,
    )
    # Registered backends and decoders may be defined in the script; else it is not needed.
    own = custom_backends() or custom_decoders()
    with without_signals("forkserver"), preparing(hides_script=not own):
        process.start()
    theirs.close()
    return _CheckProcess(process, ours, time.monotonic() + _START_TIMEOUT)


def _end(worker: _CheckProcess) -> None:
    with contextlib.suppress(OSError):
        worker.channel.send(None)
    worker.channel.close()
    if worker.task is not None and time.monotonic() >= worker.deadline:
        worker.process.kill()
    worker.process.join(_STOP_TIMEOUT)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()
    worker.process.close()


def _mismatches(case: str, findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield a finding for a case whose sound volumes have different grids."""
    volumes: Mapping[str, Any] = {
        f.key: SimpleNamespace(
            name=f.name,
            names_axes=f.names_axes,
            grid=Grid(f.shape[1:], np.reshape(f.affine, (4, 4))),
        )
        for f in findings
        if f.shape is not None and f.affine is not None
    }
    if not volumes:
        return
    try:
        TransformChain(volumes).first_plan  # noqa: B018  asking is what checks
    except VoxpipeError as error:
        yield Finding(case, "+".join(volumes), case).with_error(error)


def _other_order(finding: Finding, firsts: dict[str, Finding]) -> Iterator[Finding]:
    """Yield a finding if the channels of a key are in another order than in the first volume."""
    names = finding.channel_names
    first = firsts.setdefault(finding.key, finding) if names else finding
    try:
        refuse_other_order(finding.name, names, first.name, first.channel_names)
    except SampleError as error:
        yield finding.with_error(error)


_DIGITS = re.compile(r"\d+")


@shows_progress("index", "volumes")
def index(
    cases: Any,
    destination: str | os.PathLike[str] | None = None,
    *,
    labels: Collection[str] = LABELS,
    statistics: bool = True,
    progress: Callable[[int, int], None] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    only_bad: bool = False,
    **reader_kwargs: Any,
) -> CheckReport:
    """Write a manifest of every case, and report those that are left out since a volume is bad.

    Threads read the volumes. An interrupted run leaves ``MANIFEST.partial``, and the next one reads
    the remaining volumes only.

    Parameters
    ----------
    cases
        As of :func:`check`.
    destination
        Path or URL of the manifest: Parquet if it ends in ``.parquet``, else JSON. By default
        ``manifest.json``, or ``manifest.parquet`` for more than 50,000 volumes if pyarrow is
        installed. An existing one is used: unchanged volumes are not read again.
    statistics
        Whether to read every voxel. It gives mean, range, percentiles and classes.
    labels, progress, storage_options, only_bad, **reader_kwargs
        As of :func:`check`. None of them is written.

    Returns
    -------
    Report
        A finding per volume; a manifest is written unless all are bad.

    Raises
    ------
    VolumeNotFound
        There are no cases at all.
    SampleError
        The volumes below a folder have other keys in every case.
    BadManifest
        The destination cannot be written.

    Examples
    --------
    >>> report = index("scans/", "scans/manifest.json")  # doctest: +SKIP
    >>> pipe = from_manifest("scans/manifest.json").open_volume()  # doctest: +SKIP
    """
    if os.fspath(destination or "").endswith(".parquet") and find_spec("pyarrow") is None:
        msg = "a manifest by columns (.parquet) needs pyarrow, which is not installed."
        raise MissingDependency(msg, do="pip install voxpipe[parquet]")
    volumes, missing = _volumes_and_gaps(cases, storage_options, labels, reader_kwargs)
    count, kinds = _kinds_of(volumes)
    keys = _keys_of_labels(cases, kinds, labels)
    if isinstance(cases, (str, os.PathLike)) and not is_manifest(os.fspath(cases)):
        _refuse_other_keys(os.fspath(cases), volumes)
    if destination is None:
        by_columns = count > _MOST_IN_JSON and find_spec("pyarrow") is not None
        destination = f"manifest.{'parquet' if by_columns else 'json'}"
    show = progress or (lambda number, total: None)
    show(0, count)
    previous = _previous(destination, storage_options)
    with contextlib.closing(PartialIndex(destination)) as partial:

        def earlier(*place: str) -> Iterator[Entry]:
            return chain(partial.entries_of(*place), previous(*place))

        bad: list[Finding] = []
        lines: dict[str, dict[str, int]] = {}  # where the entry of a key begins, by case
        with contextlib.closing(describe_each(volumes, earlier, statistics)) as every:
            for number, one in enumerate(every, 1):
                if isinstance(one, Finding):
                    bad.append(one)
                else:
                    lines.setdefault(one.case, {})[one.key] = partial.add(one)
                show(number, count)
        for finding in (*bad, *missing):
            lines.pop(finding.case, None)
        starts = [start for of_case in lines.values() for start in of_case.values()]
        if starts:
            write_entries(map(partial.entry_at, starts), destination, storage_options)
        entries = map(partial.entry_at, () if only_bad else starts)
        sound = [Finding(e.case, e.key, e.location, shape=e.header.shape) for e in entries]
        partial.remove()
    findings, place = (*sound, *bad, *missing), public_name(os.fspath(destination))
    size = len(lines), len(starts)
    return CheckReport(findings, count, *keys, size=size, manifest=place)


def _previous(
    destination: str | os.PathLike[str], storage_options: Mapping[str, Any] | None
) -> Callable[[str, str, str], Iterator[Entry]]:
    """Return a search for the entries of an earlier manifest by case, key and location."""
    entries: Sequence[Entry] = ()
    try:  # compared only: none of its volumes is opened
        entries = read_manifest(destination, storage_options, follow="anywhere").entries
    except MissingDependency:
        raise
    except VoxpipeError:  # there is none
        pass
    positions = {hash((e.case, e.key, e.location)): n for n, e in enumerate(entries)}
    return lambda *place: entries_of(place, positions, entries.__getitem__)


def _refuse_other_keys(place: str, volumes: Iterable[tuple[str, str, Volume]]) -> None:
    """Raise where no two of several cases below a place share a key: no chain could use them."""
    of_case: dict[str, str] = {}
    keys: set[str] = set()
    name = ""
    for case, key, volume in volumes:
        if key in keys:
            return
        keys.add(key)
        of_case.setdefault(case, key)
        name = name or volume.name
    if len(of_case) < 2:
        return
    examples = ", ".join(f"{case} has {key}" for case, key in list(of_case.items())[:2])
    below = public_name(absolute_place(place)).rstrip("/")
    start = len(below) if name.startswith(below) else 0
    pattern = f"{name[:start]}{_DIGITS.sub('*', name[start:])}"
    msg = f"no two cases share a key: {examples}."
    do = f'Give a pattern of files for each key, in quotes: "image={pattern}", for instance.'
    raise SampleError(msg, do=do)
