"""``voxpipe check``: say which files of a data set are bad, and why."""

from __future__ import annotations

import argparse
import sys
from typing import Any


def add(commands: Any) -> None:
    """Add the command to the command line."""
    command = commands.add_parser(
        "check",
        help="open every volume of a data set and name every bad one",
        description="Open every volume of a manifest, or below a folder, in worker processes, and "
        "name every bad one with its reason. The exit status is 1 if there is one.",
    )
    command.add_argument(
        "data", metavar="MANIFEST_OR_FOLDER", help="a manifest (.json), or a folder or URL"
    )
    command.add_argument(
        "--workers", type=int, default=2, metavar="N", help="processes (default: %(default)s)"
    )
    command.add_argument(
        "--voxels", action="store_true", help="decode every voxel too: finds damage inside files"
    )
    command.add_argument(
        "--timeout",
        type=float,
        metavar="S",
        help="longest time for one volume, in seconds (default: 60; 600 with --voxels)",
    )
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Check, print every bad volume, return 1 if there is one."""
    from tqdm import tqdm

    from .dataloader2 import check

    with tqdm(desc="check", unit="volume", leave=False, file=sys.stderr) as bar:

        def progress(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        report = check(
            options.data,
            workers=max(1, options.workers),
            voxels=options.voxels,
            timeout=options.timeout or (600.0 if options.voxels else 60.0),
            progress=progress,
        )
    print(report)
    return 0 if report.ok else 1
