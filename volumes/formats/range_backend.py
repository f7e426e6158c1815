"""Backends of formats that say which bytes of their files hold a tile, and decode these bytes."""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core.errors import BadHeader, CorruptVolume
from ...storage.ranges import ObjectRanges
from ...storage.read_ahead import Closable
from ..chunks.chunked_array import (
    ChunkedArray,
    ChunkIndices,
    ChunkMap,
    ChunkSource,
    FetchedChunks,
    Index,
)
from ..chunks.ranged_chunks import Decoder, RangedChunks
from ..header import Header
from ..session import opening_session
from .chunked_backend import MOST_CHUNK_BYTES, ChunkedBackend, Layout, check_chunk_bytes
from .stored_file import StoredFile, common_store

_NUMBERS = itertools.count()


class ByteRange(NamedTuple):
    """Bytes ``start`` to ``stop`` of a file, which hold a tile or a part of it."""

    file: int
    """Number of the file in ``files``."""
    start: int
    stop: int
    fields: tuple[Any, ...] = ()
    """Further values for :meth:`RangeBackend.decode`: a place in the tile, a number of bits."""


class RangeBackend(ChunkedBackend):
    """Backend of tiles that are byte ranges of files. Subclass it for your own format.

    A format implements :meth:`read_ranges`, and :meth:`decode` or a decoder. Reads join the ranges
    into few requests, prefetch them, retry damaged ones, keep decoded tiles, and count the bytes.

    Parameters
    ----------
    files
        The files of the format, in the order of their numbers.
    header
        ``Header.of(shape, dtype, affine, chunks=(i, j, k))``: the chunks are the tiles.
    name
        Name of the volume in messages, without credentials.
    tile_channels
        Number of channels in a tile.
    decoder
        Called for each range of a tile in turn; None for the own :meth:`decode`.
    fill
        Value of tiles without a range.

    Examples
    --------
    Rows of six voxels, each after a length byte:

    >>> import os, tempfile
    >>> from voxpipe.volumes.formats.stored_file import LocalStoredFile
    >>> path = os.path.join(tempfile.mkdtemp(), "a.rows")
    >>> with open(path, "wb") as file:
    ...     _ = file.write(b"".join(bytes([6, *range(n, n + 6)]) for n in (0, 10, 20)))
    >>> class Rows(RangeBackend):
    ...     def __init__(self, file):
    ...         super().__init__([file], Header.of((1, 6, 3, 1), "u1", chunks=(6, 1, 1)))
    ...
    ...     def read_ranges(self, tiles):
    ...         return [[ByteRange(0, 7 * j + 1, 7 * j + 7)] for c, i, j, k in tiles.tolist()]
    ...
    ...     def decode(self, data, out, place, tile):
    ...         out[0, :, 0, 0] = np.frombuffer(data, np.uint8)
    >>> Rows(LocalStoredFile(path))[0, 2:5, 1:, 0].flatten().tolist()
    [12, 22, 13, 23, 14, 24]
    """

    clears: bool = False
    """Whether ``out`` is zero before the first range of a tile; undefined otherwise."""
    strided: bool = False
    """Whether ``out`` may have any strides; in C order otherwise."""

    def __init__(
        self,
        files: Sequence[StoredFile],
        header: Header,
        name: str = "",
        *,
        tile_channels: int = 1,
        decoder: Decoder | None = None,
        fill: Any = 0,
    ) -> None:
        name = name or files[-1].name
        if header.chunks is None:
            msg = f"the header of {name} has no chunks, which are the tiles of a RangeBackend."
            raise BadHeader(msg, do="Give Header.of(..., chunks=(i, j, k)).")
        self._decoder = decoder
        if decoder is not None:
            self.clears = bool(getattr(decoder, "clears", False))
            self.strided = bool(getattr(decoder, "strided", False))
        store, keys = common_store(files)
        tile = tile_channels, *header.chunks
        size = int(np.prod(tile, dtype=object)) * header.disk_dtype.itemsize
        check_chunk_bytes(size, name)
        # Options of a subclass may change its ranges: no two objects share tiles.
        token = f"tiles {next(_NUMBERS)} of {name}"
        decodes: Any = None  # ``_FetchedTiles`` does
        ranges = RangedChunks(store, _Places(keys), decodes, token, 0, name)
        self._tile_store = store
        source, cache = _Tiles(self, ranges), opening_session().chunks
        form = header.shape, tile, header.disk_dtype, fill
        array = ChunkedArray(*form, source=source, cache=cache, token=token)
        super().__init__(array, Layout(header.shape, (0,), (1, 2, 3)), files, header, name)

    @abstractmethod
    def read_ranges(self, tiles: NDArray[np.int64]) -> Sequence[Sequence[ByteRange]]:
        """Return the ranges of each tile, in the order of their decoding; none if it is not stored.

        Parameters
        ----------
        tiles
            (N, 4): numbers of the tiles along C, I, J, K.
        """

    def decode(
        self, data: memoryview, out: NDArray[Any], place: ByteRange, tile: tuple[int, ...]
    ) -> None:
        """Decode one range of a tile into ``out``, which holds the whole tile.

        Parameters
        ----------
        data
            The bytes of the range. Read-only.
        out
            (c, i, j, k) of the stored type; a tile at the end of an axis has its full size too.
            The ranges of a tile come in turn, with the same memory. Before the first one, its
            values are undefined, or zero if :attr:`clears`.
        place
            The range, with its fields.
        tile
            Numbers of the tile along C, I, J, K.

        Raises
        ------
        Exception
            Any, if the bytes are damaged. A remote store is asked once more, with all ranges of
            the tile; then the read raises ``CorruptVolume``.
        """
        if self._decoder is None:
            raise NotImplementedError("override decode(), or give a decoder")
        self._decoder.decode_into(data, out)

    @property
    def is_current(self) -> bool:
        return super().is_current and not getattr(self._tile_store, "rewrites", None)


class _Places(ChunkMap):
    """Ranges that are their own indices: number of the file, start, stop."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = keys

    def locate(self, chunks: ChunkIndices) -> ObjectRanges:
        return ObjectRanges(self._keys, *np.asarray(chunks, np.int64).reshape(-1, 3).T)


class _Tiles(ChunkSource):
    """Tiles of any number of ranges."""

    def __init__(self, backend: RangeBackend, ranges: RangedChunks) -> None:
        self.name, self.is_far = ranges.name, ranges.is_far
        self.ranges, self.backend = ranges, backend

    def places(self, tiles: ChunkIndices) -> dict[Index, Sequence[ByteRange]]:
        """Return the checked ranges of each tile."""
        numbers, files = np.asarray(tiles, np.int64).reshape(-1, 4), self.backend.files
        answer = [tuple(map(_as_range, ranges)) for ranges in self.backend.read_ranges(numbers)]
        problem = f"{type(self.backend).__name__}.read_ranges() returned"
        if len(answer) != len(numbers):
            msg = f"{problem} {len(answer)} lists for {len(numbers)} tiles of {self.name}."
            raise BadHeader(msg, do="Return one list of ranges for each tile.")
        for place in itertools.chain(*answer):
            if not 0 <= place.file < len(files) or not 0 <= place.start < place.stop:
                msg = f"{problem} {place} for {self.name}, of {len(files)} files."
                raise BadHeader(msg, do="Return ByteRange(file, start, stop) with start < stop.")
            size = files[place.file].size
            if place.stop > size or place.stop - place.start > MOST_CHUNK_BYTES:
                msg = f"a tile of {self.name} takes bytes {place.start} to {place.stop} of "
                msg += f"{files[place.file].name}, which holds {size}."
                raise CorruptVolume(msg, do="Copy or write this file again.")
        return dict(zip(map(tuple, numbers.tolist()), answer, strict=True))

    def fetch_chunks(self, chunks: ChunkIndices) -> FetchedChunks:
        return _FetchedTiles(self, self.places(chunks))

    def prefetch(self, chunks: ChunkIndices, size: int) -> Closable | None:
        spans = _spans(self.places(chunks).values()) if len(chunks) else []
        longest = max((stop - start for _, start, stop in spans), default=0)
        return self.ranges.prefetch(spans, longest) if spans else None

    def fetch(self, chunks: Sequence[Index]) -> int:
        spans = _spans(self.places(chunks).values())
        return self.ranges.fetch(spans) if spans else 0


class _FetchedTiles(FetchedChunks):
    """The bytes of tiles."""

    def __init__(self, source: _Tiles, places: dict[Index, Sequence[ByteRange]]) -> None:
        self.strided = source.backend.strided
        self._source, self._places = source, places
        self._bytes = source.ranges.fetch_chunks(_spans(places.values()))

    def decode(self, index: Index, out: NDArray[Any]) -> bool:
        backend, ranges, places = self._source.backend, self._source.ranges, self._places[index]

        def decode(is_damaged: bool) -> bool:
            body = ranges.fetch_chunks(_spans([places])) if is_damaged else self._bytes
            if backend.clears and places:
                out[...] = 0
            for place in places:
                backend.decode(body.piece(place[:3]).toreadonly(), out, place, index)
            return bool(places)

        return ranges.retry_damaged(decode, _spans([places]))

    def place(self, index: Index) -> str:
        places = self._places[index]
        return self._source.backend.files[places[0].file].name if places else ""


def _as_range(place: Any) -> ByteRange:
    file, start, stop, *fields = place
    return ByteRange(int(file), int(start), int(stop), *fields)


def _spans(places: Any) -> list[Index]:
    """Return the different ranges of tiles, without their fields."""
    return [*dict.fromkeys(place[:3] for ranges in places for place in ranges)]
