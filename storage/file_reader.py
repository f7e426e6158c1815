"""Boxes of an array in a local file, read with ``preadv`` straight into memory.

One descriptor per open volume, and no offset that is shared: any thread, and any forked child,
may read. Of what lies between rows one block at a time is in memory. With ``O_DIRECT`` every
block goes through memory that the disk can write to: offset, size and address are multiples of
4096 bytes.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Sequence
from dataclasses import replace
from typing import BinaryIO

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from ..core.errors import TruncatedVolume, VolumeError
from .box_blocks import Blocks
from .coalesce import Span
from .hints import HINTS, Hint
from .joining import LOCAL_GAP, LOCAL_RUN, NETWORK_GAP, NETWORK_RUN, Joining, joining
from .local_io import IoChoice

# The largest sector of disks in use; those with 512 bytes take it as well.
ALIGNMENT = 4096
LOCAL = Joining(LOCAL_GAP, LOCAL_RUN)
NETWORK = Joining(NETWORK_GAP, NETWORK_RUN)
_NO_DIRECT = (errno.EINVAL, errno.EOPNOTSUPP)


class FileReader:
    """The bytes of one open file.

    Parameters
    ----------
    file
        Open for reading; may be closed afterwards.
    choice
        ``"pread"`` or ``"direct"``. Where the file system refuses the latter, the former is used,
        and :attr:`choice` says so.
    name
        What errors call the volume.
    """

    def __init__(self, file: BinaryIO, choice: IoChoice, name: str) -> None:
        self.choice, self.name = choice, name
        self.usual = NETWORK if choice.network else LOCAL
        self._fd = -1
        if choice.mode == "direct":
            self._fd = self._open_direct(file)
        if self._fd < 0:
            self._fd = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._fd)

    def _open_direct(self, file: BinaryIO) -> int:
        """Return a descriptor that goes past the page cache; -1, and a reason, if there is none."""
        why = "this system has no O_DIRECT"
        if hasattr(os, "O_DIRECT"):
            try:
                # The very file that is open, whatever has its name by now.
                return os.open(f"/proc/self/fd/{file.fileno()}", os.O_RDONLY | os.O_DIRECT)
            except OSError as error:
                why = f"O_DIRECT was refused: {error.strerror}"
        self.choice = replace(self.choice, mode="pread", reason=f"{self.choice.reason}; {why}")
        return -1

    def read(
        self, lengths: Sequence[int], box: Sequence[Span], itemsize: int, offset: int
    ) -> NDArray[np.uint8]:
        """Return the bytes of a box of an array, C order, those of a row along the last axis.

        Parameters
        ----------
        lengths
            Of the array, slowest axis first.
        box
            First and last index along each axis, half-open.
        itemsize
            Bytes of one number.
        offset
            Where the array begins in the file, in bytes.

        Raises
        ------
        TruncatedVolume
            The file has become shorter since it was opened.
        VolumeError
            The disk or the network failed.
        """
        gap, most = joining(self.usual)
        blocks = Blocks(lengths, box, itemsize, gap=gap, most=most)
        out = np.empty(blocks.shape, np.uint8)
        scratch: NDArray[np.uint8] | None = None
        direct = self.choice.mode == "direct"
        for block in blocks:
            start, target = offset + block.start, out[block.target]
            if block.is_whole and target.flags.c_contiguous:
                self._read_whole(target.reshape(-1), start, most)
                continue
            if scratch is None or scratch.size < block.size + 2 * ALIGNMENT:
                scratch = aligned(block.size + 2 * ALIGNMENT)
            bytes_ = (self._cover if direct else self._plain)(scratch, start, block.size)
            target[...] = as_strided(bytes_, block.shape, block.strides)
        return out

    def will_need(
        self, lengths: Sequence[int], box: Sequence[Span], itemsize: int, offset: int
    ) -> Hint | None:
        """Tell the system what is going to be read; it brings it in beside everything else.

        Past the page cache nothing can be told, and None is returned.
        """
        if self.choice.mode == "direct":
            return None
        gap, most = joining(self.usual)
        blocks = Blocks(lengths, box, itemsize, gap=gap, most=most)
        return HINTS.tell(self._fd, offset, blocks)

    def _read_whole(self, target: NDArray[np.uint8], start: int, most: int) -> None:
        """Fill contiguous memory; past the page cache in pieces of at most ``most`` bytes."""
        if self.choice.mode != "direct":
            self._plain(target, start, target.size)
            return
        piece = max(ALIGNMENT, min(most, target.size))
        scratch = aligned(piece + 2 * ALIGNMENT)
        for at in range(0, target.size, piece):
            size = min(piece, target.size - at)
            target[at : at + size] = self._cover(scratch, start + at, size)

    def _plain(self, room: NDArray[np.uint8], start: int, size: int) -> NDArray[np.uint8]:
        view, done = room.data, 0
        while done < size:
            got = self._preadv(view[done:size], start + done)
            if not got:
                raise self._truncated(start, size, done)
            done += got
        return room[:size]

    def _cover(self, room: NDArray[np.uint8], start: int, size: int) -> NDArray[np.uint8]:
        """Read the aligned bytes around a block; return the block."""
        first = start - start % ALIGNMENT
        head = start - first
        whole = -(-(head + size) // ALIGNMENT) * ALIGNMENT
        view, done = room.data, 0
        while done < head + size:
            # After a short read the next must begin at a sector again.
            at = done - done % ALIGNMENT
            got = self._preadv(view[at:whole], first + at)
            if at + got <= done:
                raise self._truncated(start, size, max(0, done - head))
            done = at + got
        return room[head : head + size]

    def _preadv(self, view: memoryview, offset: int) -> int:
        try:
            return os.preadv(self._fd, [view], offset)
        except OSError as error:
            if error.errno in _NO_DIRECT and self.choice.mode == "direct":
                raise VolumeError(
                    f"{self.name} cannot be read past the page cache: {error.strerror}.",
                    do="Open it with io='pread'.",
                ) from error
            raise VolumeError(
                f"reading {len(view)} bytes at {offset} of {self.name} failed: {error.strerror}.",
                do="Check the disk, or the connection to the file server.",
            ) from error

    def _truncated(self, start: int, size: int, done: int) -> TruncatedVolume:
        return TruncatedVolume(
            f"{self.name} became shorter since it was opened: it ends {size - done} bytes before "
            f"byte {start + size}.",
            do="Do not write into a volume that is read; copy it again.",
        )


def aligned(size: int) -> NDArray[np.uint8]:
    """Return memory whose address is a multiple of ``ALIGNMENT``.

    Examples
    --------
    >>> aligned(10).ctypes.data % ALIGNMENT, aligned(10).size
    (0, 10)
    """
    room = np.empty(size + ALIGNMENT, np.uint8)
    first = -room.ctypes.data % ALIGNMENT
    return room[first : first + size]
