"""Errors in words of the command line: options instead of arguments of Python."""

from __future__ import annotations

import argparse
import ast
import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...core.errors import UsageError, VoxpipeError
from ...storage.location import is_url

# Arguments of functions whose option has another name.
_OTHER_NAMES = {"num_workers": "--workers", "batch_size": "--batch", "output": "--result"}
# Options of a target that is a place: a chain of the user has its own arguments.
_OF_PLACES = {"labels", "option", "optional", "reader", "storage_options"}
_OF_VOLUMES = {"affine", "channels", "follow", "io"}  # arguments that --reader takes too
_NO_LABEL = "labels= names"  # in the error of open_volume() for a key that no volume has
_UNKNOWN = "unknown option"  # in the error of a format

_CALL = r"(?:(?:vp\.)?(?:open_volume|Volume|convert|predict|index)\()"
_VALUE = r"\"[^\"]*\"|'[^']*'|\{[^{}]*\}|\[[^\[\]]*\]|\([^()]*\)|(?>[-\w]+(?:\.\w+)*)(?!\()"
_NOT_AFTER = r"(?<![-.\w])(?<!\.\.\., )(?<!--reader )(?<!--reader ')"
_ARGUMENT = re.compile(
    rf"(?P<call>{_CALL})?{_NOT_AFTER}(?P<name>[a-z]\w*)=(?P<value>{_VALUE})?(?(call)\)|)"
)
_DIAGONAL = re.compile(r"\baffine=(?:numpy|np)\.diag\(\[x, y, z, 1\]\)")
_MATRIX = "affine='[[x, 0, 0, 0], [0, y, 0, 0], [0, 0, z, 0], [0, 0, 0, 1]]'"
_OF_CALLS = re.compile(r", or (?:vp\.)?Volume\(\.\.\.\) likewise")


def format_options() -> set[str]:
    """Return the names of the options of all formats."""
    from ...volumes.registry import all_formats

    return {name for each in all_formats() for name in each.options}


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
    >>> parser = argparse.ArgumentParser()
    >>> _ = parser.add_argument("--overwrite", action="store_true")
    >>> options = argparse.Namespace(actions=parser._actions)
    >>> in_options(options, "Give another place, or overwrite=True.")
    'Give another place, or --overwrite.'
    """
    has_object = any(map(is_name_of_object, places_of(arguments)))
    options: dict[str, Any] = {}
    for action in arguments.actions:
        flags = [flag for flag in action.option_strings if flag.startswith("--")]
        if flags and not (has_object and action.dest in _OF_PLACES):
            names = {action.dest, flags[0][2:].replace("-", "_")}
            names |= {name for name, flag in _OTHER_NAMES.items() if flag == flags[0]}
            options |= dict.fromkeys(names, (flags[0], action))
    readers: set[str] = set()
    if options.pop("reader", None) is not None:  # whose value may be a function in Python
        readers = format_options() | _OF_VOLUMES | set(dict(arguments.reader))
        text = _OF_CALLS.sub("", _DIAGONAL.sub(lambda _: _MATRIX, text))

    def option(match: re.Match[str]) -> str:
        name, value = match["name"], match["value"] or ""
        if name in options:
            flag, action = options[name]
            return _flag_text(flag, action, value) or match[0]
        return _reader_text(name, value) if name in readers else match[0]

    if "patch" in options and not has_object:
        text = text.replace("Choose a smaller patch", "Give a smaller --patch")
    text = _ARGUMENT.sub(option, text)
    for name in (name for name in options if "_" in name):
        text = re.sub(rf"(?<![-\w]){name}\b(?!=)", lambda m: options[m[0]][0], text)
    return text


def places_of(arguments: argparse.Namespace) -> list[str]:
    """Return the texts of the arguments that name data."""
    names = ("target", "data", "source", "url")
    return [text for name in names if isinstance(text := getattr(arguments, name, None), str)]


def _flag_text(flag: str, action: argparse.Action, value: str) -> str:
    """Return an option with its value; empty if no command line can give that value."""
    if action.nargs == 0:
        is_set = value in ("", str(action.const))
        return flag if is_set else ""
    if value.startswith("(") and action.nargs == "+":
        texts = " ".join(map(shlex.quote, map(str, ast.literal_eval(value))))
        return f"{flag} {texts}"
    if value.startswith(("{", "[", "(")):
        return ""
    return f"{flag} {_plain(value)}" if value else flag


def _reader_text(name: str, value: str) -> str:
    return f"--reader {shlex.quote(f'{name}={_plain(value)}') if value else f'{name}='}"


def _plain(value: str) -> str:
    """Return a literal of Python as the value of an option: a text, or JSON."""
    try:
        literal = ast.literal_eval(value)
    except (SyntaxError, ValueError):
        return value
    return literal if isinstance(literal, str) else json.dumps(literal)


def reword(arguments: argparse.Namespace, error: VoxpipeError) -> VoxpipeError:
    """Return an error in words of the command; an unknown option of a format is wrong use."""
    error.do = in_options(arguments, error.do)
    if getattr(arguments, "reader", None) and _UNKNOWN in error.message:
        return UsageError(error.message, do=error.do)
    if getattr(arguments, "labels", None) and error.message.startswith(_NO_LABEL):
        message = error.message.replace(_NO_LABEL, "--labels names", 1)
        return UsageError(message, do=error.do)
    return error


def findings_in_options(arguments: argparse.Namespace, findings: Any) -> list[Any]:
    """Return findings in words of the command.

    Raises
    ------
    UsageError
        A volume was opened with an unknown option of ``--reader``.
    """
    own = [replace(each, reason=in_options(arguments, each.reason)) for each in findings]
    refuse_unknown_options(arguments, {each.name: each.reason for each in own})
    return own


def refuse_unknown_options(arguments: argparse.Namespace, reasons: Mapping[str, str]) -> None:
    """Raise ``UsageError`` if a reason of bad volumes is an unknown option of ``--reader``."""
    unknown = [reason for reason in reasons.values() if _UNKNOWN in reason]
    if unknown and arguments.reader:
        raise UsageError(unknown[0])
