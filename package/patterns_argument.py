"""Which cases a command is about, as it takes them: a glob of folders and patterns inside them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from .core.errors import SampleError


def add_patterns(command: argparse.ArgumentParser) -> None:
    """Let a command take patterns of volumes."""
    command.add_argument(
        "patterns",
        metavar="KEY=PATTERN",
        nargs="*",
        help="the volumes of a case, as in list_cases(): image=ct.nii.gz label=seg.nii.gz "
        "(default: every volume that is found)",
    )


def listed(
    url: str, patterns: Sequence[str], storage_options: Mapping[str, Any] | None = None
) -> Any:
    """Return the cases that a glob and patterns ``KEY=PATTERN`` find.

    Raises
    ------
    SampleError
        A pattern without a key.
    """
    from .datapipes.iter import list_cases

    by_key: dict[str, Any] = dict(text.partition("=")[::2] for text in patterns)
    for key, pattern in by_key.items():
        if not (key and pattern):
            raise SampleError(
                f"{key or pattern!r} is no KEY=PATTERN.",
                do='Write image=ct.nii.gz; a glob of folders needs quotes: "scans/*/".',
            )
    return list_cases(url, storage_options=storage_options, **by_key)


def opened(
    url: str,
    patterns: Sequence[str],
    storage_options: Mapping[str, Any],
    reader: Sequence[tuple[str, Any]],
    labels: Sequence[str] | None = None,
) -> Any:
    """Return the volumes that a glob and patterns find, or all below a place, in a chain.

    Parameters
    ----------
    url, patterns, storage_options
        Where they are.
    reader
        Options of their formats.
    labels
        Keys that hold labels; by default those of ``open_volume()``.
    """
    from .datapipes.iter import OpenVolume, from_cases
    from .volumes import find_volumes, is_volume

    options = {"storage_options": storage_options, **dict(reader)}
    if labels is not None:
        options["labels"] = tuple(labels)
    if patterns:
        return OpenVolume(listed(url, patterns, storage_options), **options)
    if is_volume(url):
        return OpenVolume(from_cases([{"image": url}]), **options)
    found = find_volumes(url, storage_options)
    return OpenVolume(from_cases([{"case": c, **v} for c, v in found.items()]), **options)
