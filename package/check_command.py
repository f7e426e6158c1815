"""``voxpipe check``: say which files of a data set are bad, and why."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from .beside_output import progress, remark
from .core.errors import SampleError
from .patterns_argument import add_patterns, cases_of, labels_told_here, tell_likely_labels
from .storage_option import add_options, add_reader, options_of


def add(commands: Any) -> None:
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
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Check, print every bad volume, return 1 if there is one."""
    from .dataloader2 import check

    store = options_of(options, options.data, *options.patterns)
    cases = _cases(options, store)
    labels = {} if options.labels is None else {"labels": options.labels}
    with progress("check", "volume") as told, labels_told_here():
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
