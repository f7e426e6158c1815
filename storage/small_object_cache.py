"""Small stored chunks, kept as they were sent: to ask for one costs more than to keep a hundred.

A chunk of a label map is a few hundred bytes behind a URL, and one of background is none at all.
Each is a request nevertheless, as long as one for a chunk of the image, and its voxels take so
much memory that they are soon given up. So such answers stay, "there is none" among them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from ..core.locks import DeferredLock

K = TypeVar("K", bound=tuple[Any, ...])
"""A chunk of numbers, or the key of an object that holds many."""

SMALL_BYTES = 16 * 1024
"""A connection of 60 MB/s sends this in 0.3 ms, after a round trip of 30."""
ENTRY_BYTES = 512
"""What an entry takes besides the bytes: its key and its place in the table."""


class SmallObjectCache:
    """Stored bytes by array and chunk, within a bound; the oldest that nobody asked for goes first.

    Safe to use from several threads.
    """

    def __init__(self, most_bytes: int, most_each: int = SMALL_BYTES) -> None:
        self.most_bytes, self.most_each = most_bytes, most_each
        self.held_bytes = 0
        self._answers: OrderedDict[tuple[str, tuple[Any, ...]], memoryview | None] = OrderedDict()
        self._lock = DeferredLock()

    def found(self, token: str, chunks: Sequence[K]) -> dict[K, memoryview | None]:
        """Return those of the chunks that are here; None for one that is not stored."""
        with self._lock:
            here = [index for index in chunks if (token, index) in self._answers]
            for index in here:
                self._answers.move_to_end((token, index))
            return {index: self._answers[token, index] for index in here}

    def keep(self, token: str, answers: Mapping[K, memoryview | None]) -> None:
        """Keep the small ones, as copies: a piece may be one of a large answer."""
        small = {
            index: None if piece is None else memoryview(bytes(piece))
            for index, piece in answers.items()
            if piece is None or len(piece) <= self.most_each
        }
        with self._lock:
            for index, piece in small.items():
                self._drop((token, index))
                self._answers[token, index] = piece
                self.held_bytes += _size(piece)
            while self.held_bytes > self.most_bytes:
                self._drop(next(iter(self._answers)))

    def all_of(self, token: str) -> dict[tuple[Any, ...], memoryview | None]:
        """Return all that is here of one array."""
        with self._lock:
            return {key[1]: piece for key, piece in self._answers.items() if key[0] == token}

    def forget(self, token: str, index: tuple[Any, ...]) -> None:
        """Drop one that turned out to be damaged: it is asked for again."""
        with self._lock:
            self._drop((token, index))

    def forget_all(self, token: str) -> None:
        """Drop all of one array."""
        with self._lock:
            for key in [key for key in self._answers if key[0] == token]:
                self._drop(key)

    def clear(self) -> None:
        """Drop everything."""
        self._lock.defer(self._clear)

    def _clear(self) -> None:
        self._answers.clear()
        self.held_bytes = 0

    def forget_parent(self) -> None:
        """Leave behind a lock that a thread of the parent may have held at the fork."""
        self._lock = DeferredLock()

    def __len__(self) -> int:
        return len(self._answers)

    def _drop(self, key: tuple[str, tuple[Any, ...]]) -> None:
        if key in self._answers:
            self.held_bytes -= _size(self._answers.pop(key))


def _size(piece: memoryview | None) -> int:
    return ENTRY_BYTES + (0 if piece is None else len(piece))


# The documents of some ten thousand arrays, of a kilobyte each.
_DOCUMENT_BYTES = 32 * 1024**2
# Metadata of a pyramid with many channels; a NIfTI header with extensions.
_LONGEST_DOCUMENT = 256 * 1024
DOCUMENTS = SmallObjectCache(_DOCUMENT_BYTES, _LONGEST_DOCUMENT)
"""What was read to open volumes behind URLs: it outlives their handles, until they are closed."""
