"""What a disk cache holds of one item: one file at its path, or several that a list names."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from ....core.sample import parse_json
from ....volumes.stores.ranges import open_regular
from .written import Hashes, write_whole

LIST = ".files.json"
"""End of the name of a list: it stands where an item became anything else than its own file."""


@dataclass(frozen=True)
class Entries:
    """How to tell what is there."""

    hashes: Hashes | None = None
    """What single files must be."""
    check: Callable[[str], bool] | None = None
    """The user's own check of a file, by path."""

    def files_of(self, path: str) -> list[str] | None:
        """Return the files of the item whose path this is; None if they are to be made.

        A list is written after all its files, so one that is there is whole. If a file of it was
        removed since, the item is made again.
        """
        with suppress(FileNotFoundError, ValueError, TypeError, KeyError):
            with open(f"{path}{LIST}", "rb", opener=open_regular) as file:
                listed = [str(name) for name in parse_json(file.read())["files"]]
            return listed if all(map(os.path.exists, listed)) else None
        if not os.path.exists(path):
            return None
        if self.hashes is not None and not self.hashes.hold(path):
            return None
        if self.check is not None and not self.check(path):
            return None
        return [path]

    def note(self, path: str, files: Sequence[str]) -> None:
        """Note which files an item became, unless that is plain to see."""
        if list(files) != [path]:
            write_whole(f"{path}{LIST}", json.dumps({"files": list(files)}))
