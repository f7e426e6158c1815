"""``voxpipe index``: write a manifest, so that no header is opened again."""

from __future__ import annotations

import argparse
from typing import Any

from .beside_output import progress, remark
from .core.validate import count_text
from .patterns_argument import add_patterns, cases_of, labels_told_here, tell_likely_labels
from .storage_option import add_options, add_reader, options_of


def add(commands: Any) -> None:
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
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the manifest; return 1 if a case had to be left out."""
    from .dataloader2 import index

    store = options_of(options, options.url, *options.patterns, options.output)
    labels = {} if options.labels is None else {"labels": options.labels}
    with progress("index", "volume") as told, labels_told_here():
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
