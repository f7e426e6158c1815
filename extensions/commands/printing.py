"""Output of commands: remarks, tables and JSON documents."""

from __future__ import annotations

import argparse
import io
import json
import math
import os
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ...core.redact import escape_controls
from ...storage.disk_cache import write_beside
from .cures import Origin, in_options, origin_of


def remark(text: object) -> None:
    """Print a line for the user on stderr, apart from the results on stdout."""
    print(f"voxpipe: {escape_controls(str(text))}", file=sys.stderr)


def print_text(text: object) -> None:
    """Print lines on stdout, with escapes for control characters of names in them."""
    print(escape_controls(str(text)))


def one_line(name: object) -> str:
    """Return a name with escapes for line ends and other control characters."""
    return escape_controls(str(name), lines=False)


@contextmanager
def warnings_as_remarks(arguments: argparse.Namespace) -> Iterator[None]:
    """Print each warning inside the block as one remark, in words of the command."""
    with warnings.catch_warnings():
        texts: set[str] = set()

        def show(message: Warning | str, *_: Any) -> None:
            text = in_options(arguments, message if isinstance(message, str) else message.args[0])
            if (
                origin_of(arguments) is not Origin.USER_CHAIN
            ):  # pipes of the command have no line of the user
                lines = text.splitlines()
                text = "\n".join(line for line in lines if not line.lstrip().startswith("at ."))
            if text not in texts:
                texts.add(text)
                remark(text)

        warnings.showwarning = show  # type: ignore[assignment]
        yield


def print_json(document: Any) -> None:
    """Print a JSON document on stdout; arrays become lists, other objects their texts."""
    own = _json_of(document)
    text = json.dumps(own, indent=2, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
        is_plain = text == escape_controls(text)
    except UnicodeEncodeError:
        is_plain = False
    # The escapes of JSON, not those of the terminal.
    print(text if is_plain else json.dumps(own, indent=2, allow_nan=False))


def document_of(finding: Any) -> dict[str, Any]:
    """Return a finding of a check as JSON values, with its affine as a matrix (4, 4)."""
    affine = finding.affine
    document = asdict(finding) | {"affine": None if affine is None else np.reshape(affine, (4, 4))}
    for name in ("message", "do", "argument"):  # the reason has them
        del document[name]
    return document


def write_whole(path: Path, content: Any) -> None:
    """Write a text, or a figure of matplotlib by the suffix; no partial file is ever at ``path``.

    Raises
    ------
    OSError
        The file cannot be written; the error has its name.
    """
    if isinstance(content, str):
        data = content.encode()
    else:
        buffer = io.BytesIO()
        content.savefig(buffer, format=path.suffix[1:].lower(), dpi=100)
        data = buffer.getvalue()
    try:
        write_beside(path, [data])
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error


def _json_of(thing: Any) -> Any:
    """Return JSON values; JSON has no NaN and no infinity, which become null."""
    if isinstance(thing, (np.ndarray, np.generic)):
        return _json_of(thing.tolist())
    if isinstance(thing, Mapping):
        return {str(key): _json_of(value) for key, value in thing.items()}
    if isinstance(thing, (list, tuple)):
        return [_json_of(value) for value in thing]
    if isinstance(thing, (set, frozenset)):
        return sorted(map(str, thing))
    if isinstance(thing, float):
        return thing if math.isfinite(thing) else None
    return thing if thing is None or isinstance(thing, (str, int)) else str(thing)


def _console() -> Any:
    """Return a console of ``rich`` if stdout is a terminal and it is installed, else None."""
    if not sys.stdout.isatty() or os.environ.get("TERM") == "dumb":
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(highlight=False, markup=False)


def print_facts(facts: Mapping[str, Any], title: str = "") -> None:
    """Print names and values: a table of ``rich`` on a terminal, else a line for each."""
    print_table(("", title), [(name, value) for name, value in facts.items()], has_lines=True)


def print_table(
    columns: Sequence[str], rows: Sequence[Sequence[Any]], *, has_lines: bool = False
) -> None:
    """Print rows under their columns: a table of ``rich`` on a terminal, else aligned lines.

    Empty column names print no header, without ``rich`` too. Control characters have escapes. With
    ``has_lines``, a cell may have several lines.
    """
    columns = [one_line(column) for column in columns]
    texts = [
        ["" if cell is None else escape_controls(str(cell), lines=has_lines) for cell in row]
        for row in rows
    ]
    if console := _console():
        from rich.table import Table
        from rich.text import Text

        table = Table(show_header=any(columns))
        for column in columns:
            table.add_column(Text(column), overflow="fold")
        for row in texts:
            table.add_row(*map(Text, row))
        console.print(table)
        return
    lines = [columns] * any(columns) + texts
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        indent = " " * (sum(widths[:-1]) + 2 * len(widths[:-1]))
        print("  ".join(cells).rstrip().replace("\n", f"\n{indent}"))
