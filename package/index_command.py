"""``voxpipe index``: write a manifest, so that no header is opened again."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from .beside_output import remark
from .core.errors import VoxpipeError
from .patterns_argument import add_patterns, opened
from .storage_option import add_options, add_reader, of_place, options_of


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
        help="a folder of cases, or one volume; with patterns, a glob of case folders",
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
        "--labels",
        nargs="+",
        metavar="KEY",
        help="keys that hold labels (default: those of open_volume())",
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
    from tqdm import tqdm

    from .dataloader2 import volumes_of
    from .volumes import index_cases, write_manifest

    store = options_of(options, options.url, options.output)
    of_url = of_place(store, options.url)
    volumes = list(
        volumes_of(opened(options.url, options.patterns, of_url, options.reader, options.labels))
    )
    of_output = of_place(store, options.output)
    known = _earlier(options.output, of_output)
    manifest, bad = index_cases(
        tqdm(volumes, "index", unit="volume", leave=False, file=sys.stderr),
        statistics=options.statistics,
        full_hash=options.hash == "full",
        known=known,
    )
    for finding in bad:
        remark(finding)
    if manifest.entries or not bad:
        write_manifest(manifest, options.output, storage_options=of_output)
        counted = f"{len(manifest.cases())} cases, {len(manifest.entries)} volumes"
        print(f"{options.output}: {counted}")
    if bad:
        cases = len({finding.case for finding in bad})
        remark(f"{cases} cases with bad volumes were left out")
    return 1 if bad else 0


def _earlier(output: str, store: Mapping[str, Any]) -> Any:
    """Return the manifest that is there; None if there is none that can be read."""
    from .volumes import read_manifest

    try:
        return read_manifest(output, store)
    except VoxpipeError:
        return None
