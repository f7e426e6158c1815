"""Reads past the page cache, for files that are read once or exceed the memory many times."""

from __future__ import annotations

import mmap
import os
from dataclasses import replace
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from .file_reader import FileReader
from .ranges import LOCAL_RUN, StoredBox

SECTOR = 4096
"""Offsets, sizes and addresses of direct reads are multiples of this: the largest disk sector."""


class DirectReader(FileReader):
    """Reader by O_DIRECT; by ``pread``, with the reason in ``choice``, if the system refuses."""

    def _duplicate(self, file: BinaryIO) -> int:
        why, flag = "this system has no O_DIRECT", getattr(os, "O_DIRECT", 0)
        if flag:
            try:  # the file that is open, even under another name
                number = os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY | flag)
                os.preadv(number, [mmap.mmap(-1, SECTOR)], 0)
                return number
            except OSError as error:
                why = f"O_DIRECT was refused: {error.strerror}"
        self.choice = replace(self.choice, mode="pread", reason=f"{self.choice.reason}; {why}")
        return super()._duplicate(file)

    def will_need(self, box: StoredBox) -> Any:
        """Return None: nothing reaches the page cache."""
        return None if self.choice.mode == "direct" else super().will_need(box)

    def _fill(self, target: NDArray[np.uint8], start: int, least: int = 0) -> None:
        if self.choice.mode != "direct":
            super()._fill(target, start, least)
            return
        # Anonymous memory begins at a page.
        room = np.frombuffer(mmap.mmap(-1, min(LOCAL_RUN, target.size) + 2 * SECTOR), np.uint8)
        for first in range(0, target.size, LOCAL_RUN):
            part = target[first : first + LOCAL_RUN]
            head = (start + first) % SECTOR
            whole = -(-(head + part.size) // SECTOR) * SECTOR
            super()._fill(room[:whole], start + first - head, head + part.size)
            part[...] = room[head : head + part.size]
