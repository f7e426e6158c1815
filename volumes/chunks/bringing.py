"""Stored chunks of one array, asked for before they are needed: which requests bring them.

Of a shard that a patch needs most of, all is asked for: what lies between its chunks comes along
anyway, the next patch of the visit needs that, and finds it here. A shard that is small comes
with its index.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

from ...storage.coalesce import Span
from ...storage.in_flight import Later
from ...storage.joining import Joining
from ...storage.ranges import Joined, ReadRange
from ...storage.read_ahead import AheadStore, ReadAhead, lean
from ...storage.retry import DAMAGED
from ...storage.small_answers import SMALL_BYTES
from .chunk_map import ChunkMap
from .chunked_array import Index

MOSTLY = 0.5
"""What part of a shard its requests must bring for all of it to be asked for."""


def mostly_asked(
    requests: Sequence[ReadRange], extents: Mapping[str, Span], longest: int
) -> list[str]:
    """Return the objects of which all may as well be asked for.

    Parameters
    ----------
    requests
        What would be asked for, neighbours joined.
    extents
        From where to where objects hold chunks, where that is known.
    longest
        Most bytes of one request.

    Examples
    --------
    >>> asked = [ReadRange("a", 10, 60), ReadRange("b", 10, 20), ReadRange("c", 0, 9)]
    >>> mostly_asked(asked, {"a": (0, 100), "b": (0, 10**6)}, 10**6)
    ['a']
    """
    asked: dict[str, int] = {}
    for key, start, stop in requests:
        if stop is not None and key in extents:
            first, last = extents[key]
            # An index that contradicts itself: its other chunks can be read nevertheless.
            inside = first <= start and stop <= last
            asked[key] = asked.get(key, 0) + (stop - start if inside else -last)
    sizes = {key: extents[key][1] - extents[key][0] for key in asked}
    return [
        key
        for key, brought in asked.items()
        if sizes[key] <= longest
        and brought > 0
        and (brought >= MOSTLY * sizes[key] or sizes[key] <= SMALL_BYTES)
    ]


class _Piece(NamedTuple):
    """What an object holds from some byte on."""

    start: int
    data: memoryview

    def part(self, place: ReadRange) -> memoryview:
        return self.data[place.start - self.start : (place.stop or 0) - self.start]


class Bringing:
    """Brings chunks of one array.

    Parameters
    ----------
    store, chunk_map
        Where bytes come from, and where in it chunks lie.
    token
        The array's name among what was asked for ahead.
    joined
        Which ranges become one request.
    chunk_bytes
        What a stored chunk has at most, about.
    ahead
        Where small answers and shards stay.
    """

    def __init__(
        self,
        store: AheadStore,
        chunk_map: ChunkMap,
        token: str,
        joined: Joining,
        chunk_bytes: int,
        ahead: ReadAhead,
    ) -> None:
        self._ahead = ahead
        self._store, self._map, self._token = store, chunk_map, token
        self._joined, self._chunk_bytes = joined, chunk_bytes

    async def __call__(
        self, chunks: Sequence[Index], later: Later
    ) -> dict[Index, memoryview | None]:
        """Return the stored bytes of chunks; None for one that is not stored.

        One whose bytes end early is left out: the read asks for it again, and says so.
        """
        found = self._ahead.small.found(self._token, chunks)
        chunks = [index for index in chunks if index not in found]
        if not chunks:
            return found
        lookup = self._map.lookup(chunks)
        indices = await self._indices(lookup.requests, later) if lookup.requests else ()
        try:
            places = lookup.places(indices)
        except DAMAGED:
            # The read asks for it again, and says so.
            forget_bytes(self._ahead, self._token)
            return found
        stored = [(index, place) for index, place in zip(chunks, places, strict=True) if place]
        extents = lookup.extents()
        here = await self._whole([place for _, place in stored], extents, later) if extents else {}
        rest = [place for _, place in stored if place.object not in here]
        pieces = iter(await self._pieces(rest, later) if rest else ())
        came = dict.fromkeys(chunks) | {
            index: here[place.object].part(place) if place.object in here else next(pieces)
            for index, place in stored
        }
        for index, place in stored:
            if _ends_early(came[index], place):
                del came[index]
        # What lies in an object that is kept need not be kept, nor what an index says is nowhere.
        kept = {index for index, place in stored if place.object not in here}
        alone = {i: piece for i, piece in came.items() if i in kept or not extents}
        self._ahead.small.keep(self._token, alone)
        return {**found, **came}

    async def _indices(self, requests: Sequence[ReadRange], later: Later) -> list[bytes | None]:
        """Ask for indices, once for all patches that need them; keep shards that come whole."""
        wide = [_widened(request) for request in requests]
        found = await self._shared(wide, later, stays=False)
        alone = [request for request in wide if request not in found]
        answers = await self._store.get_ranges_async(alone, ahead=later) if alone else []
        found.update(zip(alone, answers, strict=True))
        for request, answer in found.items():
            # Shorter than what was asked for: that is all there is.
            if answer is not None and len(answer) < SMALL_BYTES:
                self._ahead.small.keep(
                    _objects(self._token), {(request.object,): memoryview(answer)}
                )
        return [
            None if (answer := found[widened]) is None else _narrowed(request, answer)
            for request, widened in zip(requests, wide, strict=True)
        ]

    async def _pieces(self, places: Sequence[ReadRange], later: Later) -> list[memoryview | None]:
        """Return the bytes at places, neighbours in one request."""
        plan = Joined(places, *self._joined)
        fetched = await self._store.get_ranges_async(
            plan.requests, ahead=later, whole=self._chunk_bytes
        )
        return lean(plan.split(fetched))

    async def _whole(
        self, places: Sequence[ReadRange], extents: Mapping[str, Span], later: Later
    ) -> dict[str, _Piece]:
        """Return the shards that are here, or of which all may as well be asked for."""
        small = self._ahead.small.found(_objects(self._token), [(key,) for key in extents])
        here = {key: _Piece(0, data) for (key,), data in small.items() if data is not None}
        plan = Joined([place for place in places if place.object not in here], *self._joined)
        wanted = mostly_asked(plan.requests, extents, self._joined.longest)
        ranges = {key: ReadRange(key, *span) for key, span in extents.items() if key not in here}
        chosen = [
            place
            for key, place in ranges.items()
            if key in wanted or self._ahead.shared.holds((self._token, place))
        ]
        for place, answer in (await self._shared(chosen, later, stays=True)).items():
            if answer is not None:
                here[place.object] = _Piece(place.start, memoryview(answer))
        return here

    async def _shared(
        self, requests: Sequence[ReadRange], later: Later, *, stays: bool
    ) -> dict[ReadRange, bytes | None]:
        """Return the answers that there is room for, which others may wait for too."""
        begin = partial(self._ahead.shared.begin, later=later, stays=stays)
        asked = (
            (request, begin((self._token, request), _size(request), partial(self._ask, request)))
            for request in requests
        )
        begun = {request: waiting for request, waiting in asked if waiting is not None}
        if later.urgent:
            self._store.hurry(later)
        try:
            # All at once: of those behind one that fails, nobody would take the failure.
            answers = await asyncio.gather(*begun.values())
            return dict(zip(begun, answers, strict=True))
        finally:
            # What one of them raised holds this call, which shall not hold what others brought.
            begun.clear()

    async def _ask(self, request: ReadRange, later: Later) -> bytes | None:
        (answer,) = await self._store.get_ranges_async([request], ahead=later)
        return answer


def forgotten(ahead: ReadAhead, token: str, index: Index) -> None:
    """Drop what is here of a chunk that turned out to be damaged, and what it may lie in."""
    ahead.small.forget(token, index)
    ahead.small.forget_all(_objects(token))
    ahead.shared.forget(token)


def forget_bytes(ahead: ReadAhead, token: str) -> None:
    """Drop all stored bytes that are here of an array: it was written anew."""
    ahead.small.forget_all(token)
    ahead.small.forget_all(_objects(token))
    ahead.forget(token)


def _objects(token: str) -> str:
    """Return under which name whole objects of an array are kept among small answers."""
    return f"{token} objects"


def _ends_early(piece: memoryview | None, place: ReadRange) -> bool:
    return piece is not None and place.length is not None and len(piece) < place.length


def _size(request: ReadRange) -> int:
    return -request.start if request.stop is None else request.stop - request.start


def _widened(request: ReadRange) -> ReadRange:
    """Return an index with as much beside it as costs nothing: all of a shard that is small.

    Examples
    --------
    >>> _widened(ReadRange("a", -1028)), _widened(ReadRange("a", 0, 1028))
    (ReadRange(object='a', start=-16384, stop=None), ReadRange(object='a', start=0, stop=16384))
    """
    if request.stop is None:
        return request._replace(start=min(request.start, -SMALL_BYTES))
    return request._replace(stop=max(request.stop, SMALL_BYTES))


def _narrowed(request: ReadRange, answer: bytes) -> bytes:
    """Return what was asked for, of an answer to the widened request."""
    return answer[request.start :] if request.stop is None else answer[: request.stop]
