"""Chunks that are byte ranges of objects: fetched in few requests, then decoded.

The format locates chunks (:class:`ChunkMap`) and decodes them (:class:`ChunkDecoder`). If a patch
needs most of a shard, the whole shard is prefetched: joined requests transfer its gaps anyway, and
the next patch of the visit needs them. A small shard is fetched together with its index.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ...core.errors import CorruptVolume, VoxpipeError
from ...core.lru_cache import cached_property
from ...first_use import extensions, load
from ...storage.decompress import most_between
from ...storage.file_reader import HINTS, LocalRanges
from ...storage.in_flight import RequestPriority
from ...storage.ranges import (
    CoalescedRanges,
    CoalescePolicy,
    ObjectRanges,
    RangeStore,
    ReadRange,
    Span,
    coalesce_policy,
)
from ...storage.read_ahead import (
    SMALL_BYTES,
    AheadStore,
    ReadAhead,
    Ticket,
    without_gaps,
    works_ahead,
)
from ...storage.retry import DAMAGE, LOOKS
from ...storage.zip_ranges import ZipRanges
from ..session import close_volumes, opening_session
from .chunked_array import ChunkIndices, ChunkMap, ChunkSource, FetchedChunks, Index
from .native_chunks import LocatedChunks, StoredChunks, address_of_bytes

MOSTLY = 0.5
"""Fraction of a shard in its requests from which the whole shard is requested."""


def nearly_whole(
    requests: Sequence[ReadRange], extents: Mapping[str, Span], longest: int
) -> list[str]:
    """Return the objects that are requested whole.

    Examples
    --------
    >>> requests = [ReadRange("a", 10, 60), ReadRange("b", 10, 20), ReadRange("c", 0, 9)]
    >>> nearly_whole(requests, {"a": (0, 100), "b": (0, 10**6)}, 10**6)
    ['a']
    """
    totals: dict[str, int] = {}
    for key, start, stop in requests:
        if stop is not None and key in extents:
            first, last = extents[key]
            # A chunk outside the extent: a damaged index, whose other chunks stay readable.
            inside = first <= start and stop <= last
            totals[key] = totals.get(key, 0) + (stop - start if inside else -last)
    sizes = {key: extents[key][1] - extents[key][0] for key in totals}
    return [
        key
        for key, total in totals.items()
        if sizes[key] <= longest
        and total > 0
        and (total >= MOSTLY * sizes[key] or sizes[key] <= SMALL_BYTES)
    ]


def forget_bytes(ahead: ReadAhead, token: str, index: Index | None = None) -> None:
    """Drop the fetched bytes of an array that was written anew, or of one damaged chunk."""
    ahead.small.forget(token, index)
    ahead.small.forget(_objects(token))  # which may hold the chunk
    (ahead if index is None else ahead.requests).forget(token)


def _objects(token: str) -> str:
    """Return the token of the whole objects of an array among small answers."""
    return f"{token} objects"


def _shortage(data: memoryview | None, place: ReadRange | None) -> str:
    """Return why a piece is too short; empty if complete. Some decoders accept short pieces."""
    if place is None or place.stop is None or place.start < 0:
        return ""
    size = place.stop - place.start
    if data is None:
        return f"the object is gone, of which {size} bytes were to be read"
    return f"{len(data)} of {size} bytes are there" if len(data) < size else ""


def _widen(request: ReadRange) -> ReadRange:
    """Return the request of an index, widened to a whole shard if that is small."""
    if request.stop is None:
        return request._replace(start=min(request.start, -SMALL_BYTES))
    return request._replace(stop=max(request.stop, SMALL_BYTES))


class _Piece(NamedTuple):
    """Bytes of an object."""

    start: int  # offset in the object
    data: memoryview

    def part(self, place: ReadRange) -> memoryview:
        return self.data[place.start - self.start : (place.stop or 0) - self.start]


class ChunkDecoder(Protocol):
    """Decoder of stored chunks, which may depend on the index of a chunk."""

    def decode(self, data: memoryview, out: NDArray[Any], index: Index) -> None:
        """Decode the chunk at ``index`` into ``out``: whole chunk, stored type, C order.

        With any strides if the decoder has a true attribute ``strided``. Damaged bytes may raise
        any exception.
        """


class RangedChunks(ChunkSource):
    """The chunks of one array in a store of byte ranges."""

    def __init__(
        self,
        store: RangeStore,
        chunk_map: ChunkMap,
        decoder: ChunkDecoder,
        token: str,
        chunk_bytes: int = 0,
        name: str = "",
    ) -> None:
        self.name = name or store.name  # for errors, without credentials
        self._store, self._map, self._decoder, self._token = store, chunk_map, decoder, token
        self._chunk_bytes = chunk_bytes
        self._most = most_between(chunk_bytes) if chunk_bytes else 0
        is_local = isinstance(store, LocalRanges)
        self._native = getattr(decoder, "native", None) if is_local else None
        # Default policy of joined requests, if no scheme sets one.
        self._usual = CoalescePolicy(getattr(store, "gap", 0), getattr(store, "most", 1 << 62))
        self.is_far = works_ahead(store)
        self._more = most_of_object(store, chunk_bytes)
        self.ahead = opening_session().ahead

    def fetch_chunks(self, chunks: ChunkIndices) -> Bytes:
        bodies: dict[int, memoryview | None] = {}
        absent: ChunkIndices = chunks
        rest = np.arange(len(chunks))
        if self.is_far:
            indices = [*map(tuple, np.asarray(chunks).tolist())]
            if ahead := self.ahead.take(self._token, indices):
                bodies = {n: ahead[index] for n, index in enumerate(indices) if index in ahead}
                rest = np.array([n for n in rest.tolist() if n not in bodies], np.int64)
                absent = [indices[n] for n in rest.tolist()]
        places = self._map.locate(absent) if len(absent) else ObjectRanges.of([])
        return Bytes(self, chunks, bodies, rest, places)

    def native_source(self) -> LocatedChunks | None:
        """Return the locations from which native code decodes chunks; None without any.

        Joined requests are for files that are not in memory. Native code reads cached files one
        chunk at a time, into memory that stays in the processor cache.
        """
        # Without a bound for the size of a chunk, native code must not allocate memory for it.
        if self._native is None or not self._most:
            return None
        places = self._map.native_places(self._most)
        return None if places is None else LocatedChunks(self._native, places, self._store)

    def learn(self, chunks: ChunkIndices) -> bool:
        lookup = self._map.lookup(chunks)
        if not lookup.requests:
            return False
        self._map.locate(chunks)
        return True

    def retry_damaged(self, decode: Callable[[bool], bool], pieces: Sequence[Index]) -> bool:
        """Return ``decode(False)``; in a far store ``decode(True)`` reads damaged pieces again."""
        looks = LOOKS if self.is_far else 1
        for look in range(looks):
            try:
                return decode(look > 0)
            except BaseException as error:
                for piece in pieces if not look else ():  # the transfer may have damaged the bytes
                    forget_bytes(self.ahead, self._token, piece)
                is_last = look == looks - 1 or not isinstance(error, Exception)
                if is_last or (look and isinstance(error, (MemoryError, VoxpipeError))):
                    raise
        return False

    def _again(self, index: Index) -> tuple[memoryview | None, ReadRange | None]:
        """Read a chunk from the store again; return its bytes and range."""
        places = self._map.locate([index])
        plan, answers = self._read(places)
        return plan.split(answers)[0], places.range(0)

    def prefetch(self, chunks: ChunkIndices, size: int) -> Ticket | None:
        """Begin to fetch; for local files, send hints to the system if they help."""
        if isinstance(self._store, LocalRanges):
            if len(chunks) and hasattr(os, "posix_fadvise"):
                self._store.will_need(self._map.locate(chunks), HINTS.is_here)
            return None
        store = self._store
        if not works_ahead(store):
            return None
        fetch_ahead = partial(self._fetch_ahead, store, coalesce_policy(self._usual))
        indices = [*map(tuple, np.asarray(chunks).tolist())]
        return self.ahead.begin(self._token, indices, lambda _: size, store, fetch_ahead)

    async def _fetch_ahead(
        self,
        store: AheadStore,
        policy: CoalescePolicy,
        chunks: Sequence[Index],
        later: RequestPriority,
    ) -> dict[Index, memoryview | None]:
        """Return the stored bytes of chunks; None for one that is not stored.

        Leaves out chunks that end early: the read requests them again and raises.
        """
        pieces = self.ahead.small.find(self._token, chunks)
        chunks = [index for index in chunks if index not in pieces]
        if not chunks:
            return pieces
        lookup = self._map.lookup(chunks)
        try:
            places = lookup.places(
                await self._indices(store, lookup.requests, later) if lookup.requests else ()
            )
        except DAMAGE:
            # The read requests it again and raises.
            forget_bytes(self.ahead, self._token)
            return pieces
        pairs = zip(chunks, places.ranges(), strict=True)
        ranges = {index: place for index, place in pairs if place}
        extents = lookup.extents()
        whole = await self._whole(store, policy, ranges, extents, later) if extents else {}
        rest = {index: place for index, place in ranges.items() if place.object not in whole}
        bodies = dict.fromkeys(chunks) | {
            index: whole[place.object].part(place)
            for index, place in ranges.items()
            if index not in rest
        }
        if rest:
            plan = CoalescedRanges(list(rest.values()), *policy)
            answers = await store.get_ranges_async(
                plan.requests, ahead=later, whole=self._chunk_bytes
            )
            bodies.update(zip(rest, without_gaps(plan.split(answers)), strict=True))
        for index, place in ranges.items():
            if _shortage(bodies[index], place):
                del bodies[index]
        # Do not keep chunks twice, in a kept object, nor those that an index knows to be absent.
        alone = {i: piece for i, piece in bodies.items() if i in rest or not extents}
        self.ahead.small.keep(self._token, alone)
        return {**pieces, **bodies}

    async def _indices(
        self, store: AheadStore, requests: Sequence[ReadRange], later: RequestPriority
    ) -> list[bytes | None]:
        """Request indices, once for all patches that need them; keep shards that arrive whole."""
        wide = [_widen(request) for request in requests]
        by_request = await self._share(store, wide, later, stays=False)
        alone = [request for request in wide if request not in by_request]
        answers = await store.get_ranges_async(alone, ahead=later) if alone else []
        by_request.update(zip(alone, answers, strict=True))
        for request, answer in by_request.items():
            # Shorter than the request: the answer is the whole shard.
            if answer is not None and len(answer) < SMALL_BYTES:
                shard = {(request.object,): memoryview(answer)}
                self.ahead.small.keep(_objects(self._token), shard)
        pairs = zip(requests, map(by_request.__getitem__, wide), strict=True)
        # Cut each answer to the requested range.
        return [
            answer and (answer[index.start :] if index.stop is None else answer[: index.stop])
            for index, answer in pairs
        ]

    async def _whole(
        self,
        store: AheadStore,
        policy: CoalescePolicy,
        places: Mapping[Index, ReadRange],
        extents: Mapping[str, Span],
        later: RequestPriority,
    ) -> dict[str, _Piece]:
        """Return the shards that are here or are requested whole."""
        small = self.ahead.small.find(_objects(self._token), [(key,) for key in extents])
        here = {key: _Piece(0, data) for (key,), data in small.items() if data is not None}
        absent = [place for place in places.values() if place.object not in here]
        objects = nearly_whole(CoalescedRanges(absent, *policy).requests, extents, policy.longest)
        ranges = {key: ReadRange(key, *span) for key, span in extents.items() if key not in here}
        requests = [
            place
            for key, place in ranges.items()
            if key in objects or self.ahead.requests.holds((self._token, place))
        ]
        for place, answer in (await self._share(store, requests, later, stays=True)).items():
            if answer is not None:
                here[place.object] = _Piece(place.start, memoryview(answer))
        return here

    async def _share(
        self,
        store: AheadStore,
        requests: Sequence[ReadRange],
        later: RequestPriority,
        *,
        stays: bool,
    ) -> dict[ReadRange, bytes | None]:
        """Return answers shared with other patches, for the requests that fit into memory."""

        async def fetch(request: ReadRange, later: RequestPriority) -> bytes | None:
            (answer,) = await store.get_ranges_async([request], ahead=later)
            return answer

        def begin(request: ReadRange) -> asyncio.Future[bytes | None] | None:
            size = -request.start if request.stop is None else request.stop - request.start
            key, pool = (self._token, request), self.ahead.requests
            return pool.begin(key, size, partial(fetch, request), later=later, stays=stays)

        futures = {
            request: future for request in requests if (future := begin(request)) is not None
        }
        future = None
        if later.urgent:
            store.hurry(later)
        try:
            # All at once: awaited in turn, failures after the first would never be retrieved.
            answers = await asyncio.gather(*futures.values())
            return dict(zip(futures, answers, strict=True))
        finally:
            # An exception keeps this frame alive: drop the other answers.
            futures.clear()

    def fetch(self, chunks: Sequence[Index]) -> int:
        plan, answers = self._read(self._map.locate(chunks))
        return sum(len(piece) for piece in plan.split(answers) if piece is not None)

    def _read(self, places: ObjectRanges) -> tuple[CoalescedRanges, list[bytes | None]]:
        # The bound holds for the worst compression.
        sizes = places.stop - places.start
        beyond = (sizes > (self._most or math.inf)) & (places.stop >= 0) & (places.start >= 0)
        for n in (beyond & (places.which >= 0)).nonzero()[0][:1].tolist():
            raise CorruptVolume(
                f"a chunk of {self.name} is stored in {sizes[n]} bytes, in "
                f"{places.objects[places.which[n]] or 'the file'}, and takes {self._chunk_bytes} "
                "when decoded.",
                do="Copy or write this file again.",
            )
        plan = CoalescedRanges(places, *coalesce_policy(self._usual))
        return plan, self._store.get_ranges(plan.requests, *self._more)


class Bytes(FetchedChunks):
    """Stored bytes of chunks and their decoder."""

    def __init__(
        self,
        source: RangedChunks,
        chunks: ChunkIndices,
        bodies: dict[int, memoryview | None],
        rest: NDArray[np.int64],
        places: ObjectRanges,
    ) -> None:
        self.strided = bool(getattr(source._decoder, "strided", False))
        """Whether the decoder accepts memory of any strides."""
        self._source, self._chunks = source, chunks
        # The prefetched chunks by number; None for one that is not stored.
        self._bodies = bodies
        # The numbers and ranges of all others.
        self._rest, self._places = rest, places
        self._answers = source._read(places)

    def stored_chunks(self) -> StoredChunks | None:
        decoder = getattr(self._source._decoder, "native", None)
        if decoder is None:
            return None
        plan, answers = self._answers
        # The last entry is for chunks without a request.
        bases = [*(0 if body is None else address_of_bytes(body) for body in answers), 0]
        lengths = [*(0 if body is None else len(body) for body in answers), 0]
        base, length = np.array([bases, lengths], np.int64)[:, plan.request]
        size = np.where(plan.length < 0, length, plan.length)
        columns = np.zeros((2, len(self._chunks)), np.int64)
        # An object that vanished after its index was read has an address, and no bytes.
        is_gone = (plan.request >= 0) & (plan.length >= 0)
        columns[0, self._rest] = np.where(base, base + plan.offset, is_gone)
        # A chunk that ends early gets no bytes, because some decoders accept it.
        columns[1, self._rest] = np.where(plan.offset + size <= length, size, 0)
        for n, piece in self._bodies.items():
            if piece is not None:
                columns[:, n] = address_of_bytes(piece), len(piece)
        return StoredChunks(decoder, columns, self)

    @cached_property
    def _pieces(self) -> dict[Index, tuple[memoryview | None, ReadRange | None]]:
        """Bytes of each chunk, None if it is not stored, and its range if known."""
        indices = [*map(tuple, np.asarray(self._chunks).tolist())]
        plan, answers = self._answers
        pieces = plan.split(answers), self._places.ranges()
        by_number = dict(zip(self._rest.tolist(), zip(*pieces, strict=True), strict=True))
        by_number.update((n, (piece, None)) for n, piece in self._bodies.items())
        return {index: by_number[n] for n, index in enumerate(indices)}

    def piece(self, index: Index) -> memoryview:
        """Return the bytes of a chunk that is stored; ``EOFError`` if they end early."""
        piece, place = self._pieces[index]
        if shortage := _shortage(piece, place):
            raise EOFError(shortage)
        if piece is None:
            raise EOFError("its bytes are gone")
        return piece

    def decode(self, index: Index, out: NDArray[Any]) -> bool:
        source = self._source

        def decode(is_damaged: bool) -> bool:
            buffer, place = source._again(index) if is_damaged else self._pieces[index]
            if shortage := _shortage(buffer, place):
                raise EOFError(shortage)
            if buffer is not None:
                source._decoder.decode(buffer, out, index)
            return buffer is not None

        return source.retry_damaged(decode, [index])

    def place(self, index: Index) -> str:
        place = self._pieces[index][1]
        return "" if place is None else place.object


def most_of_object(store: Any, chunk_bytes: int) -> tuple[int, ...]:
    """Return further arguments of ``get_ranges``, which bound whole objects by a chunk's need."""
    if isinstance(store, (LocalRanges, ZipRanges)):
        return (most_between(chunk_bytes) if chunk_bytes else 0,)
    return (chunk_bytes,) if works_ahead(store) else ()


# External decoders, registered by the name of a codec or declared as entry points.
#
# If a whole chunk is part of a read, its decoder writes directly into the memory that the read
# returns. An entry point of the group ``voxpipe.decoders`` maps the name of a codec to its factory.


class Decoder(Protocol):
    """Decoder of the stored bytes of one chunk. Several threads may use it at once.

    With a true attribute ``strided``, ``out`` may have any strides. Without, it is in C order
    without gaps. With a true attribute ``clears``, ``out`` is zero before each decode, for decoders
    that add to it. Without, its values are undefined. Zarr arrays take a decoder by the name of
    its codec, own formats as ``RangeBackend(decoder=)``.

    Examples
    --------
    A codec that stores the low byte of each number as it is:

    >>> import numpy as np
    >>> class LowBytes:
    ...     strided = True
    ...
    ...     def decode_into(self, data, out):
    ...         out[...] = np.frombuffer(data, np.uint8).reshape(out.shape)
    >>> room = np.zeros((2, 3, 4), np.int16)
    >>> LowBytes().decode_into(bytes(range(6)), room[:, :, 1])
    >>> room[:, :, 1].tolist(), int(room.sum())
    ([[0, 1, 2], [3, 4, 5]], 15)
    """

    def decode_into(self, data: memoryview, out: NDArray[Any]) -> None:
        """Decode one chunk into all of ``out``, and write nothing outside of it.

        Parameters
        ----------
        data
            The bytes encoded by the codec. Read-only.
        out
            The whole chunk, in stored axes and type: zero with ``clears``, else undefined.

        Raises
        ------
        Exception
            Any, if the bytes are not a whole chunk. The read raises ``CorruptVolume`` with the
            chunk and its file.
        """


Factory = Callable[[Mapping[str, Any]], Decoder]
"""Returns the decoder of an array, given the configuration of the codec in its metadata."""

_FACTORIES: dict[str, Factory] = {}


def register_decoder(name: str, factory: Factory) -> None:
    """Register a decoder for a codec of zarr arrays, before any decoder of voxpipe.

    Parameters
    ----------
    name
        Name of the codec in ``zarr.json``, without the prefix ``numcodecs.``, or id of the
        compressor in ``.zarray``. The codec must be the first that encodes numbers to bytes, or the
        first after ``bytes``. At other positions zarr-python decodes it.
    factory
        Called once for each opened array, with the codec's configuration. Define it at the top of
        a module, because workers that are not forked import it.

    Notes
    -----
    Packages declare an entry point in the group ``voxpipe.decoders`` instead.

    Examples
    --------
    >>> register_decoder("mine", lambda configuration: None)
    >>> decoder_factory("mine") is None, unregister_decoder("mine"), decoder_factory("mine")
    (False, None, None)
    """
    _FACTORIES[name] = factory
    close_volumes()  # open volumes do not use it


def unregister_decoder(name: str) -> None:
    """Remove a decoder, if one of this name is registered."""
    _FACTORIES.pop(name, None)
    close_volumes()


def decoder_factory(name: str, *, external: bool = True) -> Factory | None:
    """Return the decoder factory of a codec; ``external`` includes packages. None without one."""
    if name in _FACTORIES or not external:
        return _FACTORIES.get(name)
    point = extensions("decoders").get(name)
    return None if point is None else load(point)


def custom_decoders() -> tuple[tuple[str, Factory], ...]:
    """Return the decoders registered in this process, for new workers."""
    return tuple(_FACTORIES.items())
