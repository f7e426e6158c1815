"""Open every volume of a data set and name every bad one.

Open every volume of a manifest, of a table or below a folder, in worker processes. Name every bad
one with its reason: missing and unreadable files, images and labels on other grids, labels that are
no whole numbers. The exit status is 1 if there is one.

example: voxpipe check "scans/*/" image=ct.nii.gz label=seg.nii.gz --voxels
"""

from __future__ import annotations

import argparse
from typing import Any

from ...core.errors import UsageError
from .options import add_store_options, positive
from .printing import document_of, print_json, print_text, remark
from .targets import Target, add_patterns, remark_likely_labels


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the data set, its patterns, and the effort of the check."""
    place = "a manifest (.json, .parquet), a table of cases (.csv, .tsv, .jsonl), a folder or URL"
    add_patterns(
        parser, "data", f"{place}, one volume, or a glob (in quotes) of volumes or folders"
    )
    whole, number = positive(int), positive(float)
    about = "worker processes (default: %(default)s)"
    workers: Any = {"dest": "num_workers", "type": whole, "default": 2, "metavar": "N"}
    parser.add_argument("--workers", **workers, help=about)
    about = "decode every voxel too: finds damage inside files"
    parser.add_argument("--voxels", action="store_true", help=about)
    about = "longest time for one volume, in seconds (default: 60; 600 with --voxels)"
    parser.add_argument("--timeout", type=number, metavar="S", help=about)
    add_store_options(parser, "data")


def run(arguments: argparse.Namespace) -> int:
    """Print the findings; return 1 if a volume is bad."""
    from ...dataloader2 import check

    target = Target(arguments.data, arguments)
    option = "--reader" if arguments.reader else "--labels" if arguments.labels else ""
    if option and target.is_manifest:
        msg = f"{arguments.data} is a manifest, which says how its volumes are read."
        raise UsageError(msg, do=f"Leave {option} out, or give the folder.")
    timeout = arguments.timeout or (600.0 if arguments.voxels else 60.0)
    own = {"num_workers": arguments.num_workers, "voxels": arguments.voxels, "timeout": timeout}
    report = target.report(check, only_bad=True, **own)
    if arguments.json:
        document = {"checked": report.volumes, "bad": [*map(document_of, report.bad)]}
        document["spacings"] = {key: [*sizes] for key, sizes in report.lengths.items()}
        print_json(document | {"likely_labels": report.likely_labels})
    else:
        print_text(report)
    remark_likely_labels(report)
    if not arguments.voxels:
        remark("headers only; --voxels also finds damage inside of files")
    return 0 if report.ok else 1
