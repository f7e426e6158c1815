"""Show or clear the local cache of decoded volumes and results.

Show the entries of the cache folder, and its budget: $VOXPIPE_CACHE and $VOXPIPE_CACHE_BYTES.
Volumes in use can be removed: their bytes are free when the last reader closes them.

example: voxpipe cache
"""

from __future__ import annotations

import argparse
import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from ...core.errors import AccessDenied, VolumeNotFound
from ...core.settings import bytes_text, size_of_text
from ...core.suggest import path_hint
from ...storage.disk_cache import RESULTS, cache_budget, cache_directory, remove_file
from .printing import print_json, print_table
from .targets import refuse_denied

_VOLUMES = "decoded volumes"
_DECODED_NAME = re.compile(r"[0-9a-f]{32}\.nii")


class _Entry(NamedTuple):
    kind: str
    last_use: int  # time of the last use, in nanoseconds
    size: int  # bytes on the disk
    path: Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the changes of the cache; by default there is none."""
    about = "the cache (default: $VOXPIPE_CACHE, or voxpipe in the user's cache directory)"
    parser.add_argument("--folder", type=Path, metavar="FOLDER", help=about)
    change = parser.add_mutually_exclusive_group()
    change.add_argument("--clear", action="store_true", help="remove every entry")
    about = "remove the entries used longest ago, until the rest has at most this size: 10G"
    change.add_argument("--limit", type=_size, metavar="SIZE", help=about)


def _size(text: str) -> int:
    try:
        return size_of_text(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not {error}") from error


def run(arguments: argparse.Namespace) -> int:
    """Print the entries by kind, after the change."""
    folder = arguments.folder or cache_directory()
    refuse_denied(str(folder))
    if arguments.folder is not None and not folder.is_dir():
        raise VolumeNotFound(f"there is no folder {folder}.", do=path_hint(str(folder)))
    entries = sorted(_entries(folder), key=lambda entry: entry.last_use)
    limit = 0 if arguments.clear else arguments.limit
    removed_bytes, count = 0, 0
    if limit is not None:
        total = sum(entry.size for entry in entries)
        while (entries and total - removed_bytes > limit) or (entries and arguments.clear):
            entry = entries.pop(0)
            if not remove_file(entry.path):
                msg = f"{entry.path} cannot be removed"
                raise AccessDenied(msg, do="Run the command as the owner of the cache.")
            removed_bytes, count = removed_bytes + entry.size, count + 1
    rows = _rows_of(entries)
    document: dict[str, Any] = {
        "folder": str(folder),
        "budget_bytes": cache_budget(),
        "kinds": rows,
    }
    document |= {"bytes": sum(entry.size for entry in entries)}
    document |= {"removed": count, "removed_bytes": removed_bytes}
    if arguments.json:
        print_json(document)
        return 0
    if limit is not None:
        print(f"{count} entries removed, {bytes_text(removed_bytes)}")
    print(f"{folder}: {bytes_text(document['bytes'])} of at most {bytes_text(cache_budget())}")
    if rows:
        cells = [(r["kind"], r["entries"], bytes_text(r["bytes"]), r["last_use"]) for r in rows]
        print_table(("kind", "entries", "bytes", "last use"), cells)
    return 0


def _rows_of(entries: list[_Entry]) -> list[dict[str, Any]]:
    by_kind: dict[str, list[_Entry]] = {}
    for entry in entries:
        by_kind.setdefault(entry.kind, []).append(entry)
    rows: list[dict[str, Any]] = []
    for kind, some in sorted(by_kind.items()):
        last = time.localtime(max(entry.last_use for entry in some) / 1e9)
        size = sum(entry.size for entry in some)
        when = time.strftime("%Y-%m-%d %H:%M", last)
        rows.append({"kind": kind, "entries": len(some), "bytes": size, "last_use": when})
    return rows


def _entries(folder: Path) -> Iterator[_Entry]:
    """Yield the entries of voxpipe in a folder; locks and unfinished files stay."""
    places = [(_VOLUMES, path) for path in _files(folder) if _DECODED_NAME.fullmatch(path.name)]
    for name in RESULTS:
        places += [(name, path) for path in _files(folder / name)]
    for kind, path in places:
        with suppress(OSError):  # another process removes entries, too
            status = path.lstat()
            yield _Entry(kind, max(status.st_atime_ns, status.st_mtime_ns), status.st_size, path)


def _files(folder: Path) -> Iterator[Path]:
    for place, _, names in os.walk(folder):
        yield from (Path(place, name) for name in sorted(names))
        if folder.name not in RESULTS:
            return
