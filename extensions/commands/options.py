"""Options that commands share: of formats, of stores, and numbers with a least value."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...core.errors import UsageError
from ...core.suggest import closest
from ...storage.location import is_url, local_path
from .cures import is_name_of_object, reader_options, reword


def add_store_options(command: argparse.ArgumentParser, data: str = "target") -> None:
    """Add the options of a format, as of ``open_volume()``, and of a store to a command.

    ``data`` is the argument that names the data, and ``origin`` who opens them, once it is known.
    """
    pairs: Any = {"type": _pair, "action": "append", "default": [], "metavar": "KEY=VALUE"}
    value = "VALUE is JSON, or else a text; may be repeated"
    about = "an option of open_volume() for the format: --reader dataset=ct --reader level=1; "
    command.add_argument("--reader", **pairs, help=about + value)
    about = (
        "for URLs: storage_options as a JSON object, or a file that holds one, which other "
        'users of the machine cannot see: \'{"endpoint_url": "https://..."}\' (default: what the '
        "environment says)"
    )
    command.add_argument("--storage-options", type=_object, default={}, metavar="JSON", help=about)
    about = "one of the storage_options: --option anon=true; "
    command.add_argument("--option", **pairs, help=about + value)
    command.set_defaults(reword=reword, actions=command._actions, data_in=data, origin=None)


def store_options(arguments: argparse.Namespace, *places: str) -> dict[str, Any]:
    """Return the options of the store; none if no place is a URL.

    Raises
    ------
    UsageError
        No format has an option that ``--reader`` names.
    """
    if arguments.reader and not any(map(is_name_of_object, places)):
        _refuse_unknown_readers(dict(arguments.reader))
    if not any(map(is_url, places)):
        return {}
    return {**arguments.storage_options, **dict(arguments.option)}


def _refuse_unknown_readers(reader: Mapping[str, Any]) -> None:
    from ...volumes import custom_backends

    names = reader_options()
    unknown = [name for name in reader if name not in names]
    if not unknown or custom_backends():  # backends of the user have options of their own
        return
    near = closest(unknown[0], names, 0.7)
    do = f"Did you mean --reader {near[0]}=?" if near else "Leave it out."
    raise UsageError(f"no format has the option {unknown[0]!r} of --reader", do=do)


# Messages never quote a text that does not parse: it may hold a secret.
def _object(text: str) -> dict[str, Any]:
    is_json = text.lstrip().startswith("{")
    document = None
    with suppress(OSError, ValueError):
        document = json.loads(text if is_json else Path(text).read_text(encoding="utf-8"))
    if not isinstance(document, dict):
        msg = "the value is neither a JSON object nor a file with one"
        raise argparse.ArgumentTypeError(msg)
    return document


def _pair(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not (key and equals):
        raise argparse.ArgumentTypeError("an option is KEY=VALUE")
    try:
        return key, json.loads(value)
    except ValueError:
        return key, value


def place(text: str) -> str:
    """Return the text of a place; an empty one would mean the current folder."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the text is empty; write . for the current folder")
    return text


def output_file(*suffixes: str) -> Callable[[str], str]:
    """Return a parser of the file to write: its suffix is one of some, and its folder exists."""

    def file(text: str) -> str:
        if not text.lower().endswith(suffixes):
            msg = f"{text} ends with none of {', '.join(suffixes)}"
            raise argparse.ArgumentTypeError(msg)
        if is_url(text):
            return text
        path = local_path(text)
        if os.path.isdir(path):
            raise argparse.ArgumentTypeError(f"{text} is a folder; name a file in it")
        folder = os.path.dirname(path)
        if folder and not os.path.isdir(folder):
            msg = f"there is no folder {folder}; create it first, or name another"
            raise argparse.ArgumentTypeError(msg)
        return text

    return file


def refuse_http(command: str, place: str) -> None:
    """Raise ``UsageError`` for a destination on a web server, which takes no files."""
    if place.lower().startswith(("http://", "https://")):
        msg = f"{command} cannot write to {place.partition(':')[0].lower()}"
        raise UsageError(msg, do="Give a path, or the URL of a bucket such as s3://bucket/name.")


def positive(kind: type[float], *, or_zero: bool = False) -> Callable[[str], float]:
    """Return a parser of numbers above 0, or of at least 0."""

    def number(text: str) -> float:
        value = kind(text)
        if not (value > 0 or (or_zero and value == 0)):
            least = "at least" if or_zero else "above"
            raise argparse.ArgumentTypeError(f"{text} is not {least} 0")
        return value

    return number
