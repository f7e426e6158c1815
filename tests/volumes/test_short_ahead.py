"""A chunk that comes short ahead of its read is refused there, as a read of its own refuses it."""

import numpy as np
import pytest

from voxpipe.core import Region
from voxpipe.core.errors import CorruptVolume
from voxpipe.storage.ranges import ObjectRanges, ReadRange
from voxpipe.storage.remote import open_remote
from voxpipe.volumes.chunks.chunk_cache import ChunkCache
from voxpipe.volumes.chunks.chunked_array import ChunkedArray, Lookup
from voxpipe.volumes.chunks.ranged_chunks import RangedChunks

SIZE = 30_000


class Places:
    """Two chunks, of which the object holds one and a half; told by an index, or not."""

    def __init__(self, whole):
        self._extents = {"a": (0, 2 * SIZE)} if whole else {}

    def locate(self, chunks):
        return ObjectRanges.of([ReadRange("a", n * SIZE, (n + 1) * SIZE) for (n,) in chunks])

    def lookup(self, chunks):
        return Lookup((), lambda answers: self.locate(chunks), lambda: self._extents)


class Lenient:
    """Makes of few bytes what it can, as decoders of progressive images do."""

    def decode(self, data, out, index):
        out[: len(data)] = np.frombuffer(data, np.uint8)


@pytest.mark.parametrize("whole", [False, True])
def test_a_chunk_that_is_cut_short(server, client, whole):
    """Whether it comes alone, with its neighbours, or with all of its shard."""
    (server.bucket / "a").write_bytes(b"x" * (SIZE * 3 // 2))
    store = open_remote("s3://bucket", server.storage_options)
    source = RangedChunks(store, Places(whole), Lenient(), f"short {whole} {client}", SIZE)
    array = ChunkedArray(
        (2 * SIZE,), (SIZE,), np.dtype(np.uint8), 0, source=source, cache=ChunkCache(0), token="a"
    )
    whole_array = Region((0,), (2 * SIZE,))
    with pytest.raises(CorruptVolume, match="15000 of 30000 bytes"):
        array.read(whole_array)

    ticket = array.prefetch(whole_array)
    with pytest.raises(CorruptVolume, match="15000 of 30000 bytes are there") as raised:
        array.read(whole_array)
    ticket.close()

    assert "its bytes in a:" in str(raised.value)
