"""Errors in words of the command line: options instead of arguments of Python."""

from __future__ import annotations

import argparse
import json
import os
import shlex
from dataclasses import replace
from enum import Enum
from typing import Any

from ...core.cures import Argument, spell
from ...core.errors import UnknownName, UsageError, VoxpipeError
from ...storage.location import is_url

_OF_VOLUME = frozenset(("option", "optional", "reader", "storage_options"))


class Origin(Enum):
    """The code that opens the volumes of a command; a value has options that do not concern it."""

    COMMAND = frozenset[str]()
    USER_VOLUME = _OF_VOLUME
    USER_CHAIN = _OF_VOLUME | {"labels", "patch"}


# Arguments that have an option of their own.
_OWN_OPTIONS = {"labels", "storage_options"}


def reader_options() -> set[str]:
    """Return the names that ``--reader`` takes: of all formats, ``Volume`` and ``open_volume()``.

    Examples
    --------
    >>> {"level", "channels", "affine"} <= reader_options(), "labels" in reader_options()
    (True, False)
    """
    from ...datapipes.open_volume import OpenVolume
    from ...volumes import Volume
    from ...volumes.registry import all_formats

    names = set[str]().union(*(each.options for each in all_formats()))
    for function in (Volume.__init__, OpenVolume.__init__):
        names |= {*(function.__kwdefaults__ or ())}
    return names - _OWN_OPTIONS


def is_name_of_object(text: str) -> bool:
    """Return whether a text is ``module:NAME``, and no path or URL."""
    module, _, name = text.rpartition(":")
    is_name = bool(module) and name.isidentifier()
    return is_name and not is_url(text) and not os.path.exists(text)


def in_options(arguments: argparse.Namespace, text: str) -> str:
    """Return a text with the options of the command instead of arguments of Python.

    ``arguments`` are those of a command with the options of formats and stores.

    Examples
    --------
    >>> from voxpipe.core.cures import cure
    >>> parser = argparse.ArgumentParser()
    >>> _ = parser.add_argument("--overwrite", action="store_true")
    >>> options = argparse.Namespace(actions=parser._actions, origin=Origin.COMMAND)
    >>> in_options(options, cure("Give another place, or ⟦overwrite=True⟧."))
    'Give another place, or --overwrite.'
    """
    options, readers = _options_of(arguments)

    def words(one: Argument) -> str:
        if one.name in options:
            return _flag_text(*options[one.name], one.value) or one.python
        return _reader_text(one) if one.name in readers else one.python

    return spell(text, words)


def _options_of(
    arguments: argparse.Namespace,
) -> tuple[dict[str, tuple[str, argparse.Action]], set[str]]:
    """Return the options that concern the data by their arguments, and the names of --reader."""
    others = origin_of(arguments).value
    options: dict[str, tuple[str, argparse.Action]] = {}
    for action in arguments.actions:
        flag = next((flag for flag in action.option_strings if flag.startswith("--")), "")
        if flag and action.dest not in others:
            options |= dict.fromkeys((action.dest, flag[2:]), (flag, action))
    if options.pop("reader", None) is None:  # whose value may be a function in Python
        return options, set()
    return options, reader_options() | set(dict(arguments.reader))


def is_wrong_use(arguments: argparse.Namespace, argument: str) -> bool:
    """Return whether an argument without a meaning comes from an option of the command."""
    options, readers = _options_of(arguments)
    return argument in readers or argument in options


def origin_of(arguments: argparse.Namespace) -> Origin:
    """Return who opens the volumes: as the target says, or by its text before it is opened."""
    if arguments.origin is not None:
        return Origin(arguments.origin)
    text = getattr(arguments, arguments.data_in, None)
    return Origin.USER_CHAIN if text and is_name_of_object(text) else Origin.COMMAND


def _flag_text(flag: str, action: argparse.Action, value: Any) -> str:
    """Return an option with its value; empty if no command line can give that value."""
    if action.nargs == 0:
        return flag if value in (None, action.const) else ""
    if isinstance(value, tuple) and action.nargs == "+":
        return f"{flag} {' '.join(shlex.quote(str(one)) for one in value)}"
    if isinstance(value, dict):
        return f"{flag} {shlex.quote(json.dumps(value))}"
    if isinstance(value, (list, tuple)):
        return ""
    return flag if value is None else f"{flag} {_plain(value)}"


def _reader_text(one: Argument) -> str:
    if one.value is None:
        return f"--reader {one.name}="
    return f"--reader {shlex.quote(f'{one.name}={_plain(one.value)}')}"


def _plain(value: Any) -> str:
    """Return the value of an option: a text, or JSON."""
    text = value if isinstance(value, str) else json.dumps(value)
    return text.replace("'", '"') if text.startswith("{") else text


def reword(arguments: argparse.Namespace, error: VoxpipeError) -> VoxpipeError:
    """Return an error in words of the command; an unknown name in an option is wrong use."""
    error.message, error.do = (in_options(arguments, text) for text in (error.message, error.do))
    if isinstance(error, UnknownName) and is_wrong_use(arguments, error.argument):
        return UsageError(error.message, do=error.do)
    return error


def findings_in_options(arguments: argparse.Namespace, findings: Any) -> list[Any]:
    """Return findings in words of the command.

    Raises
    ------
    UsageError
        A volume was opened with an unknown option of ``--reader``.
    """
    own = []
    for finding in findings:
        names = ("reason", "message", "do")
        texts = {name: in_options(arguments, getattr(finding, name)) for name in names}
        own.append(replace(finding, **texts))
        if finding.argument and is_wrong_use(arguments, finding.argument):
            raise UsageError(own[-1].message, do=own[-1].do)
    return own
