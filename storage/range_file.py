"""A remote file that another library reads here and there: seekable, in few requests."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from ..core.errors import TruncatedVolume
from .coalesce import Span, coalesce
from .remote_file import Piece, RemoteFile
from .remote_objects import GAP_BYTES, MOST_BYTES
from .seekable import Seekable

# Tables lie scattered in a file, a few hundred bytes each. One request brings the neighbours as
# well; at 60 MB/s that takes a millisecond longer.
_PAGE_BYTES = 64 * 1024
# The tables of a file with some ten thousand chunks.
_MOST_PAGES = 64


class RangeFile(Seekable):
    """A file for one thread at a time: small reads go by pages, large ones as announced."""

    def __init__(self, file: RemoteFile) -> None:
        super().__init__(file.size)
        self._file = file
        self._pages: OrderedDict[int, bytes] = OrderedDict()
        self._held: list[tuple[int, Piece]] = []

    def piece(self, start: int, stop: int) -> Piece:
        """Return bytes, from memory where they are there."""
        at = bisect_right(self._held, start, key=lambda piece: piece[0]) - 1
        if at >= 0:
            first, piece = self._held[at]
            if stop <= first + len(piece):
                return memoryview(piece)[start - first : stop - first]
        if stop - start > _PAGE_BYTES:
            return self._fetch([(start, stop)])[0]
        number, last = start // _PAGE_BYTES, (stop - 1) // _PAGE_BYTES
        pages = b"".join(map(self._page, range(number, last + 1)))
        return pages[start - number * _PAGE_BYTES : stop - number * _PAGE_BYTES]

    @contextmanager
    def announced(self, spans: Sequence[Span]) -> Iterator[int]:
        """Bring in what is going to be read, neighbours in one request, and keep it meanwhile.

        Returns
        -------
        A context whose value is how many bytes came in.
        """
        runs = coalesce(spans, GAP_BYTES, MOST_BYTES)
        answers = self._fetch(runs) if runs else []
        self._held = [(run[0], answer) for run, answer in zip(runs, answers, strict=True)]
        try:
            yield sum(map(len, answers))
        finally:
            self._held = []

    def _page(self, number: int) -> bytes:
        found = self._pages.get(number)
        if found is None:
            start = number * _PAGE_BYTES
            found = bytes(self._fetch([(start, min(start + _PAGE_BYTES, self._file.size))])[0])
            self._pages[number] = found
        self._pages.move_to_end(number)
        while len(self._pages) > _MOST_PAGES:
            self._pages.popitem(last=False)
        return found

    def _fetch(self, spans: Sequence[Span]) -> list[Piece]:
        answers = self._file.ranges(spans)
        for (start, stop), answer in zip(spans, answers, strict=True):
            if len(answer) != stop - start:
                raise TruncatedVolume(
                    f"{self._file.name} sent {len(answer)} of the {stop - start} bytes from "
                    f"{start} on.",
                    do="Read again, or check the store.",
                )
        return answers
