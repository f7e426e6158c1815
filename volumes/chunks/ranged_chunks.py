"""Chunks that are ranges of bytes of named objects: fetched in few requests, then decoded.

The format says where a chunk lies (:class:`ChunkMap`) and how its bytes become numbers
(:class:`ChunkDecoder`); joining neighbours, and bytes that were asked for ahead, are here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from numpy.typing import NDArray

from ...core.errors import CorruptVolume, VoxpipeError
from ...storage.joining import Joining, joining
from ...storage.ranges import Joined, LocalRanges, RangeStore, ReadRange
from ...storage.read_ahead import Ticket, works_ahead
from ...storage.retry import LOOKS
from ...storage.zip_ranges import ZipRanges
from ..session import opening_session
from .bounded import most_between
from .bringing import Bringing, forgotten
from .chunk_map import ChunkMap
from .chunked_array import Index


class ChunkDecoder(Protocol):
    """Makes voxels of the bytes of a chunk; may depend on which one it is."""

    def decode(self, data: memoryview, out: NDArray[Any], index: Index) -> None:
        """Decode the chunk at ``index`` into ``out``: whole chunk, stored type, C order.

        With any strides where the decoder has a true attribute ``strided``.

        May raise anything where the bytes are damaged.
        """


class RangedChunks:
    """The chunks of one array in a store of byte ranges.

    Parameters
    ----------
    store, chunk_map, decoder
        Where bytes come from, where in it chunks lie, and how they are decoded.
    token
        The array's name among what was asked for ahead.
    chunk_bytes
        What a chunk takes when it is decoded, and so about what it has at most when stored.
    """

    def __init__(
        self,
        store: RangeStore,
        chunk_map: ChunkMap,
        decoder: ChunkDecoder,
        token: str,
        chunk_bytes: int = 0,
    ) -> None:
        self._store, self._map, self._decoder, self._token = store, chunk_map, decoder, token
        self._chunk_bytes = chunk_bytes
        self._ahead = opening_session().ahead

    @property
    def name(self) -> str:
        """Root of the store, without credentials."""
        return self._store.name

    def bring(self, chunks: Sequence[Index]) -> Bytes:
        """Fetch the stored bytes of chunks, neighbours in one request."""
        data = self._ahead.taken(self._token, chunks)
        absent = [index for index in chunks if index not in data]
        places = self._map.locate(absent) if absent else []
        stored = [(index, place) for index, place in zip(absent, places, strict=True) if place]
        answers = self._read([place for _, place in stored])
        data.update(zip((index for index, _ in stored), answers, strict=True))
        forget = partial(forgotten, self._ahead, self._token)
        again = self._again if works_ahead(self._store) else None
        return Bytes(data, dict(stored), self._decoder, forget, again)

    def _again(self, index: Index) -> memoryview | None:
        """Read the stored bytes of a chunk from the store itself; None if it is not stored."""
        (place,) = self._map.locate([index])
        (found,) = [None] if place is None else self._read([place])
        _check_length(found, place)
        return found

    def prefetch(self, chunks: Sequence[Index], size: int) -> Ticket | None:
        """Begin to fetch; the system does so by itself for local files."""
        if isinstance(self._store, LocalRanges):
            places = self._map.locate(chunks)
            self._store.will_need([place for place in places if place is not None])
            return None
        store = self._store
        if not works_ahead(store):
            return None
        bring = Bringing(
            store, self._map, self._token, self._joining(), self._chunk_bytes, self._ahead
        )
        return self._ahead.begin(self._token, chunks, lambda _: size, store, bring)

    def fetch(self, chunks: Sequence[Index]) -> int:
        """Fetch the stored bytes of chunks and drop them; return how many."""
        places = [place for place in self._map.locate(chunks) if place is not None]
        answers = self._read(places)
        return sum(len(answer) for answer in answers if answer is not None)

    def _read(self, places: Sequence[ReadRange]) -> list[memoryview | None]:
        """Return the bytes at places, neighbours in one request."""
        most = most_between(self._chunk_bytes) if self._chunk_bytes else 0
        if most:
            self._check_sizes(places, most)
        plan = Joined(places, *self._joining())
        return plan.split(stored_bytes(self._store, plan.requests, self._chunk_bytes))

    def _check_sizes(self, places: Sequence[ReadRange], most: int) -> None:
        """Refuse chunks that are stored in more bytes than any of theirs can need."""
        for place in places:
            size = place.length
            if size is not None and size > most:
                raise CorruptVolume(
                    f"a chunk of {self.name} is stored in {size} bytes, in "
                    f"{place.object or 'the file'}, and takes {self._chunk_bytes} when decoded.",
                    do="Copy or write this file again.",
                )

    def _joining(self) -> Joining:
        """Return which ranges become one request: as the scheme says, or the store."""
        store = self._store
        return joining(Joining(getattr(store, "gap", 0), getattr(store, "most", 1 << 62)))


@dataclass(frozen=True, eq=False)
class Bytes:
    """Stored bytes of chunks, and their decoder."""

    data: dict[Index, memoryview | None]
    """By chunk; none for one that is not stored."""
    places: dict[Index, ReadRange]
    """Where they lie, of those that were not asked for ahead."""
    decoder: ChunkDecoder
    """Makes voxels of them."""
    forget: Callable[[Index], None] = lambda index: None
    """Called with a chunk that is damaged, before that is raised."""
    again: Callable[[Index], memoryview | None] | None = None
    """Reads a chunk from a store whose answers may be damaged on their way."""

    @property
    def strided(self) -> bool:
        """Whether the decoder writes into memory of any strides."""
        return bool(getattr(self.decoder, "strided", False))

    def decode(self, index: Index, out: NDArray[Any]) -> bool:
        """Decode one chunk; False if it is not stored."""
        found = self.data.get(index)
        if found is None:
            return False
        try:
            _check_length(found, self.places.get(index))
            self.decoder.decode(found, out, index)
        except BaseException as error:
            self.forget(index)
            if not isinstance(error, Exception) or self.again is None:
                raise
        else:
            return True
        return self._decode_again(self.again, index, out)

    def _decode_again(
        self, again: Callable[[Index], memoryview | None], index: Index, out: NDArray[Any]
    ) -> bool:
        """Read and decode a chunk whose bytes made no sense: the way here may have done that."""
        for left in reversed(range(LOOKS - 1)):
            try:
                found = again(index)
                if found is None:
                    return False
                self.decoder.decode(found, out, index)
                return True
            except (MemoryError, VoxpipeError):
                raise
            except Exception:
                if not left:
                    raise
        return False

    def place(self, index: Index) -> str:
        """Return the object that holds a chunk."""
        place = self.places.get(index)
        return "" if place is None else place.object


def _check_length(data: memoryview | None, place: ReadRange | None) -> None:
    """Refuse a piece that ends early: some decoders make voxels of it nevertheless."""
    expected = None if place is None else place.length
    if data is not None and expected is not None and len(data) < expected:
        raise EOFError(f"{len(data)} of {expected} bytes are there")


def stored_bytes(
    store: Any, ranges: Sequence[ReadRange], chunk_bytes: int = 0
) -> list[bytes | None]:
    """Return the bytes of ranges, of no whole object more than a chunk in it can need.

    Parameters
    ----------
    store
        A store of ranges; one that somebody else has made knows no such limit.
    ranges
        In any order.
    chunk_bytes
        What a chunk takes when it is decoded; 0 if that is not known.
    """
    if works_ahead(store):
        found = store.get_ranges(ranges, chunk_bytes)
    elif isinstance(store, (LocalRanges, ZipRanges)):
        found = store.get_ranges(ranges, most_between(chunk_bytes) if chunk_bytes else 0)
    else:
        found = store.get_ranges(ranges)
    return list(found)
