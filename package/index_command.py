"""``voxpipe index``: write a manifest, so that no header is opened again."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from .core.errors import VoxpipeError


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
        "url", metavar="URL", help="a folder of cases; with patterns, a glob of case folders"
    )
    command.add_argument(
        "patterns",
        metavar="KEY=PATTERN",
        nargs="*",
        help="the volumes of a case, as in list_cases(): image=ct.nii.gz label=seg.nii.gz "
        "(default: every volume that is found)",
    )
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
    command.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write the manifest; return 1 if a case had to be left out."""
    from tqdm import tqdm

    from .dataloader2 import volumes_of
    from .volumes import index_cases, write_manifest

    volumes = list(volumes_of(_pipe(options)))
    known = _earlier(options.output)
    manifest, bad = index_cases(
        tqdm(volumes, "index", unit="volume", leave=False, file=sys.stderr),
        statistics=options.statistics,
        full_hash=options.hash == "full",
        known=known,
    )
    for finding in bad:
        print(f"voxpipe: {finding}", file=sys.stderr)
    if manifest.entries or not bad:
        write_manifest(manifest, options.output)
        counted = f"{len(manifest.cases())} cases, {len(manifest.entries)} volumes"
        print(f"{options.output}: {counted}")
    if bad:
        cases = len({finding.case for finding in bad})
        print(f"voxpipe: {cases} cases with bad volumes were left out", file=sys.stderr)
    return 1 if bad else 0


def _pipe(options: argparse.Namespace) -> Any:
    from .datapipes.iter import OpenVolume, from_cases
    from .volumes import find_volumes

    labels: dict[str, Any] = {} if options.labels is None else {"labels": tuple(options.labels)}
    if options.patterns:
        return OpenVolume(listed(options.url, options.patterns), **labels)
    found = find_volumes(options.url)
    return OpenVolume(from_cases([{"case": c, **v} for c, v in found.items()]), **labels)


def listed(url: str, patterns: Sequence[str]) -> Any:
    """Return the cases that a glob and patterns ``KEY=PATTERN`` find.

    Raises
    ------
    SampleError
        A pattern without a key.
    """
    from .core.errors import SampleError
    from .datapipes.iter import list_cases

    by_key: dict[str, Any] = dict(text.partition("=")[::2] for text in patterns)
    for key, pattern in by_key.items():
        if not (key and pattern):
            raise SampleError(
                f"{key or pattern!r} is no KEY=PATTERN.",
                do='Write image=ct.nii.gz; a glob of folders needs quotes: "scans/*/".',
            )
    return list_cases(url, **by_key)


def _earlier(output: str) -> Any:
    """Return the manifest that is there; None if there is none that can be read."""
    from .volumes import read_manifest

    try:
        return read_manifest(output)
    except VoxpipeError:
        return None
