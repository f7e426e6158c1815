"""Which cases a command is about: a place, or patterns as ``list_cases()`` takes them."""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from .beside_output import remark
from .core.errors import LikelyLabel, SampleError
from .core.suggest import closest


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
    command.add_argument(
        "--optional",
        nargs="+",
        default=[],
        metavar="KEY",
        help="keys that a case may lack, as in list_cases(); each is one of the patterns",
    )
    command.add_argument(
        "--labels",
        nargs="+",
        metavar="KEY",
        help="keys that hold labels (default: those of open_volume())",
    )


# Options of which several values follow each other, so that a pattern may stand among them.
_SEVERAL_VALUES = ("labels", "optional")


def gather_patterns(options: argparse.Namespace, left: Sequence[str]) -> list[str]:
    """Put ``KEY=PATTERN`` from wherever it was written beside the other patterns.

    Parameters
    ----------
    options
        What was parsed.
    left
        What was left over: all that stands behind an option.

    Returns
    -------
    list of str
        What is still left over.
    """
    if "patterns" not in options:
        return list(left)
    for option in _SEVERAL_VALUES:
        values = getattr(options, option, None) or []
        options.patterns += [value for value in values if _is_pattern(value)]
        if values:
            setattr(options, option, [value for value in values if not _is_pattern(value)])
    unknown = [text for text in left if text.startswith("-")]
    if unknown:  # a pattern behind one may be its value
        return list(left)
    options.patterns += [text for text in left if _is_pattern(text)]
    return [text for text in left if not _is_pattern(text)]


@contextmanager
def labels_told_here() -> Iterator[None]:
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


def _is_pattern(text: str) -> bool:
    return "=" in text and text.partition("=")[0].isidentifier()


def cases_of(
    data: str,
    patterns: Sequence[str],
    storage_options: Mapping[str, Any],
    optional: Sequence[str] = (),
) -> Any:
    """Return what ``check()`` and ``index()`` take: a place, or a pipe of what patterns find.

    Parameters
    ----------
    data
        A place; a glob of case folders; or a pattern, where there is no folder.
    patterns
        ``KEY=PATTERN`` each, as :func:`list_cases` takes them.
    storage_options
        For URLs.
    optional
        Keys of patterns that a case may lack.

    Raises
    ------
    SampleError
        A pattern without a key, or without a star where there is no folder; or an optional key
        that no pattern has.
    """
    from .datapipes.iter import list_cases

    is_pattern = _is_pattern(data) and not os.path.exists(data)
    if not (patterns or is_pattern):
        if optional:
            what = f"--optional needs patterns: {optional[0]} is the key of none."
            raise SampleError(what, do=f"Write image=ct.nii.gz {optional[0]}=PATTERN.")
        return data
    texts = [data, *patterns] if is_pattern else patterns
    by_key: dict[str, Any] = dict(text.partition("=")[::2] for text in texts)
    for key, pattern in by_key.items():
        if not (key and pattern):
            raise SampleError(
                f"{key or pattern!r} is no KEY=PATTERN.",
                do='Write image=ct.nii.gz; a glob of folders needs quotes: "scans/*/".',
            )
    for key in optional:
        if key not in by_key:
            near = closest(key, by_key, 0.5)
            do = f"did you mean --optional {near[0]}?" if near else "Name one of them."
            raise SampleError(f"--optional {key} is none of the keys: {', '.join(by_key)}", do=do)
    folder = None if is_pattern else data
    try:
        return list_cases(folder, optional=optional, storage_options=storage_options, **by_key)
    except ValueError as error:
        raise SampleError(str(error), do='Write image="imagesTr/*_0000.nii.gz".') from error
