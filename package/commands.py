"""The commands ``check``, ``index`` and ``convert``."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from .command_arguments import (
    add_options,
    add_patterns,
    add_reader,
    cases_of,
    of_place,
    options_of,
)
from .core.errors import LikelyLabel, SampleError, VoxpipeError
from .core.validate import count_text


def remark(text: object) -> None:
    """Print one line or error of voxpipe's."""
    print(f"voxpipe: {text}", file=sys.stderr)


@contextmanager
def progress(what: str, unit: str, *, scaled: bool = False) -> Iterator[Callable[[int, int], None]]:
    """Show a bar while the context lasts; its value is told how many are done, and of how many."""
    from tqdm import tqdm

    with tqdm(desc=what, unit=unit, unit_scale=scaled, leave=False, file=sys.stderr) as bar:

        def told(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        yield told


def add_check(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser(
        "check",
        help="open every volume of a data set and name every bad one",
        description="Open every volume of a manifest, or below a folder, in worker processes, and "
        "name every bad one with its reason, also images and labels that do not fit each other. "
        "The exit status is 1 if there is one.",
    )
    command.add_argument(
        "data",
        metavar="DATA",
        help="a manifest (.json), a folder or URL, one volume, or a glob (in quotes) of volumes or "
        "folders; with patterns, a glob of case folders, or the first pattern",
    )
    add_patterns(command)
    command.add_argument(
        "--workers", type=_whole, default=2, metavar="N", help="processes (default: %(default)s)"
    )
    command.add_argument(
        "--voxels", action="store_true", help="decode every voxel too: finds damage inside files"
    )
    command.add_argument(
        "--timeout",
        type=_seconds,
        metavar="S",
        help="longest time for one volume, in seconds (default: 60; 600 with --voxels)",
    )
    add_reader(command)
    add_options(command)
    command.set_defaults(run=run_check)


def run_check(options: argparse.Namespace) -> int:
    """Check, print every bad volume, return 1 if there is one."""
    from .dataloader2 import check

    store = options_of(options, options.data, *options.patterns)
    cases = _cases(options, store)
    labels = {} if options.labels is None else {"labels": options.labels}
    with progress("check", "volume") as told, without_label_warnings():
        report = check(
            cases,
            workers=options.workers,
            voxels=options.voxels,
            timeout=options.timeout or (600.0 if options.voxels else 60.0),
            progress=told,
            storage_options=store,
            **labels,
            **dict(options.reader),
        )
    print(report)
    tell_likely_labels(report)
    if not options.voxels:
        remark("headers only; --voxels also finds damage inside of files")
    return 0 if report.ok else 1


def _cases(options: argparse.Namespace, store: Mapping[str, Any]) -> Any:
    cases = cases_of(options.data, options.patterns, store, options.optional)
    given = "--reader" if options.reader else "--labels" if options.labels else ""
    if given and options.data.lower().endswith(".json"):
        what = f"{options.data} is a manifest, which says how its volumes are read."
        raise SampleError(what, do=f"Leave {given} out, or give the folder.")
    return cases


def _whole(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than 1")
    return number


def _seconds(text: str) -> float:
    number = float(text)
    if not number > 0:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return number


def add_index(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser(
        "index",
        help="write a manifest of a data set: headers, statistics, versions",
        description="Write a manifest: shape, affine, type, layout, statistics (mean, range, "
        "percentiles, class counts) and version of every volume. vp.from_manifest() then plans "
        "without opening a file. Given again, only volumes that changed are read.",
    )
    command.add_argument(
        "url",
        metavar="URL",
        help="a folder of cases, one volume, or a glob (in quotes) of volumes or folders; with "
        "patterns, a glob of case folders, or the first pattern",
    )
    add_patterns(command)
    command.add_argument(
        "-o",
        "--output",
        default="manifest.json",
        metavar="FILE",
        help="path or URL (default: %(default)s)",
    )
    command.add_argument(
        "--no-statistics",
        dest="statistics",
        action="store_false",
        help="read headers only; normalize() will compute what it needs",
    )
    command.add_argument(
        "--hash",
        choices=("stamp", "full"),
        default="stamp",
        help="stamp: size and time of writing, or ETag; full: also every stored byte "
        "(default: %(default)s)",
    )
    add_reader(command)
    add_options(command)
    command.set_defaults(run=run_index)


def run_index(options: argparse.Namespace) -> int:
    """Write the manifest; return 1 if a case had to be left out."""
    from .dataloader2 import index

    store = options_of(options, options.url, *options.patterns, options.output)
    labels = {} if options.labels is None else {"labels": options.labels}
    with progress("index", "volume") as told, without_label_warnings():
        report = index(
            cases_of(options.url, options.patterns, store, options.optional),
            options.output,
            statistics=options.statistics,
            full_hash=options.hash == "full",
            progress=told,
            storage_options=store,
            **labels,
            **dict(options.reader),
        )
    for finding in report.bad:
        remark(finding)
    tell_likely_labels(report)
    sound = [finding for finding in report.findings if not finding.is_bad]
    if sound:
        counted = (
            f"{count_text(len({finding.case for finding in sound}), 'case')}, "
            f"{count_text(len(sound), 'volume')}"
        )
        print(f"{options.output}: {counted}")
    if report.bad:
        cases = len({finding.case for finding in report.bad})
        left_out = count_text(
            cases, "case with bad or missing volumes was", "cases with bad or missing volumes were"
        )
        remark(f"{left_out} left out")
    return 1 if report.bad else 0


def add_convert(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser(
        "convert",
        help="write volumes as sharded zarr v3, for fast patches",
        description="Write one volume, or every volume below a folder, as sharded zarr v3 in its "
        "stored type. A command that was killed continues where it was when given again; what is "
        "at the destination is whole or absent.",
    )
    command.add_argument(
        "source",
        metavar="SRC",
        help="a volume, a folder of cases, or a glob of either; path or URL",
    )
    command.add_argument(
        "destination", metavar="DST", help="the zarr to write, or the folder for all of them"
    )
    command.add_argument(
        "--chunk",
        type=int,
        metavar="N",
        help="voxels per axis of a chunk (default: chosen)",
    )
    command.add_argument(
        "--shard",
        type=int,
        metavar="N",
        help="voxels per axis of a shard (default: chosen)",
    )
    command.add_argument(
        "--patch",
        type=int,
        default=96,
        metavar="N",
        help="voxels per axis of the patches that will be read (default: %(default)s)",
    )
    command.add_argument(
        "--codec",
        choices=("lz4", "zstd", "none"),
        default="lz4",
        help="lz4 decodes fastest, zstd stores least (default: %(default)s)",
    )
    command.add_argument("--overwrite", action="store_true", help="replace zarr groups at DST")
    add_reader(command)
    add_options(command)
    command.set_defaults(run=run_convert)


def run_convert(options: argparse.Namespace) -> int:
    """Convert; return 1 if a volume could not be converted."""
    store = options_of(options, options.source, options.destination)
    jobs = _jobs(options.source, options.destination, of_place(store, options.source))
    failed = 0
    for source, destination in jobs:
        try:
            print(_convert(source, destination, options, store))
        except VoxpipeError as error:
            failed += 1
            error.do = error.do.replace("overwrite=True", "--overwrite")
            remark(error)
    if failed and len(jobs) > 1:
        remark(f"{failed} of {len(jobs)} volumes were not converted")
    return 1 if failed else 0


def _jobs(source: str, destination: str, store: dict[str, Any]) -> list[tuple[str, str]]:
    from .core.errors import DestinationExists
    from .storage.location import local_path
    from .volumes import find_by_folder, is_volume

    path = local_path(source)
    if is_volume(source) or (os.path.lexists(path) and not os.path.isdir(path)):
        return [(source, destination)]
    folder = destination.rstrip("/")
    jobs: dict[str, str] = {}
    for case, volumes in find_by_folder(source, store).items():
        for key, place in volumes.items():
            alone = list(volumes) == ["image"]
            written = f"{folder}/{case if alone else f'{case}/{key}'}.nii.zarr"
            if written in jobs:
                raise DestinationExists(
                    f"{place} and {jobs[written]} would both be written to {written}.",
                    do="Rename one of them, or convert them one by one.",
                )
            jobs[written] = place
    return [(place, written) for written, place in jobs.items()]


def _convert(
    source: str, destination: str, options: argparse.Namespace, store: dict[str, Any]
) -> str:
    from .volumes import Volume, convert

    reader = dict(options.reader)
    name = os.path.basename(source.rstrip("/"))
    with progress(name, "voxel", scaled=True) as told:
        done = convert(
            Volume(source, storage_options=of_place(store, source), **reader),
            destination,
            chunk=options.chunk,
            shard=options.shard,
            patch=options.patch,
            codec=options.codec,
            overwrite=options.overwrite,
            progress=told,
            storage_options=store,
        )
    chunk, shard = ("x".join(map(str, size)) for size in (done.chunk, done.shard))
    kept = f", {done.kept} were there" if done.kept else ""
    return f"{done.location}: chunks {chunk}, {done.written} shards {shard} written{kept}"


@contextmanager
def without_label_warnings() -> Iterator[None]:
    """Leave out what functions warn of likely labels: :func:`tell_likely_labels` says it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LikelyLabel)
        yield


def tell_likely_labels(report: Any) -> None:
    """Print a line for each key that looks like a label and counts as an image."""
    for key in report.likely_labels:
        all_of_them = " ".join((*report.labels, *report.likely_labels))
        others = " ".join(report.labels) or "label"
        remark(
            f"{key}: LikelyLabel: it looks like a label, and counts as an image. If it holds "
            f"classes, give --labels {all_of_them}; if not, --labels {others}."
        )
