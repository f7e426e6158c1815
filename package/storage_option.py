"""Options of stores and readers, as the commands take them; those of a store are never printed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
