"""Which cases a command is about: a place, or patterns as ``list_cases()`` takes them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from typing import Any

from .core.errors import SampleError


def add_patterns(command: argparse.ArgumentParser) -> None:
    """Let a command take patterns of volumes."""
    command.add_argument(
        "patterns",
        metavar="KEY=PATTERN",
        nargs="*",
        help="the volumes of a case, as in list_cases(): image=ct.nii.gz label=seg.nii.gz below "
        'a glob of folders, or "image=imagesTr/*_0000.nii.gz" "label=labelsTr/*.nii.gz" alone '
        "(default: every volume that is found)",
    )


def cases_of(data: str, patterns: Sequence[str], storage_options: Mapping[str, Any]) -> Any:
    """Return what ``check()`` and ``index()`` take: a place, or a pipe of what patterns find.

    Parameters
    ----------
    data
        A place; a glob of case folders; or a pattern, where there is no folder.
    patterns
        ``KEY=PATTERN`` each, as :func:`list_cases` takes them.
    storage_options
        For URLs.

    Raises
    ------
    SampleError
        A pattern without a key, or without a star where there is no folder.
    """
    from .datapipes.iter import list_cases

    is_pattern = data.partition("=")[0].isidentifier() and "=" in data and not os.path.exists(data)
    if not (patterns or is_pattern):
        return data
    texts = [data, *patterns] if is_pattern else patterns
    by_key: dict[str, Any] = dict(text.partition("=")[::2] for text in texts)
    for key, pattern in by_key.items():
        if not (key and pattern):
            raise SampleError(
                f"{key or pattern!r} is no KEY=PATTERN.",
                do='Write image=ct.nii.gz; a glob of folders needs quotes: "scans/*/".',
            )
    try:
        return list_cases(None if is_pattern else data, storage_options=storage_options, **by_key)
    except ValueError as error:
        raise SampleError(str(error), do='Write image="imagesTr/*_0000.nii.gz".') from error
