"""Arguments that commands share: patterns of volumes, options of stores and readers."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .core.errors import SampleError
from .core.suggest import closest
from .storage.location import is_url

_BAD = "is no JSON object, nor a file that holds one"


def add_options(command: argparse.ArgumentParser) -> None:
    """Let a command take options of the store."""
    command.add_argument(
        "--storage-options",
        type=_object,
        default={},
        metavar="JSON",
        help="for URLs: storage_options as a JSON object, or a file that holds one, which other "
        'users of the machine cannot see: \'{"endpoint_url": "https://..."}\' (default: what the '
        "environment says)",
    )
    command.add_argument(
        "--option",
        type=_pair,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="one of them; VALUE is JSON, or else a text: --option anon=true; may be repeated",
    )


def add_reader(command: argparse.ArgumentParser) -> None:
    """Let a command take options of the format, as ``open_volume()`` does."""
    command.add_argument(
        "--reader",
        type=_pair,
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="an option of open_volume() for the format, VALUE as above: --reader dataset=ct, "
        "--reader level=1; may be repeated",
    )


def options_of(arguments: argparse.Namespace, *places: str) -> dict[str, Any]:
    """Return the options of the store; none where no place is a URL."""
    if not any(map(is_url, places)):
        return {}
    return {**arguments.storage_options, **dict(arguments.option)}


def of_place(options: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Return the options for one place: local paths have none."""
    return dict(options) if is_url(place) else {}


# What does not parse is never repeated in a message: it may hold a secret.
def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(
            text if text.lstrip().startswith("{") else Path(text).read_text(encoding="utf-8")
        )
    except (OSError, ValueError):
        raise argparse.ArgumentTypeError(f"what was given {_BAD}") from None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError(f"what was given {_BAD}")
    return found


def _pair(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError("an option is KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


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
    """Put ``KEY=PATTERN`` from wherever it was written beside the others; return what is left."""
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


def _is_pattern(text: str) -> bool:
    return "=" in text and text.partition("=")[0].isidentifier()


def cases_of(
    data: str,
    patterns: Sequence[str],
    storage_options: Mapping[str, Any],
    optional: Sequence[str] = (),
) -> Any:
    """Return what ``check()`` and ``index()`` take: a place, or a pipe of what patterns find.

    ``data`` is a place; a glob of case folders; or a pattern, where there is no folder.
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
