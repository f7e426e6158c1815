"""The contract of decoders of chunks, as tests: subclass it for a codec of your own.

::

    class TestMyCodec(DecoderContract):
        @pytest.fixture
        def case(self):
            array = np.arange(5 * 6 * 7, dtype=np.int16).reshape(5, 6, 7)
            chunk = my_encoder(array)  # not with the code under test
            return DecoderCase("my-codec", MyDecoder, chunk, array, {"level": 3})

pytest collects the inherited tests.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ..core.errors import CorruptVolume
from ..volumes import Volume, close_volumes, register_decoder, unregister_decoder
from ..volumes.chunks.ranged_chunks import Decoder, Factory

_THREADS = 8
# Content of the memory before a decode.
_ANYTHING = 77


@dataclass(frozen=True)
class DecoderCase:
    """One stored chunk and its voxels."""

    name: str
    """Name of the codec."""
    factory: Factory
    """Argument of ``register_decoder``."""
    chunk: bytes
    """The chunk as stored."""
    array: NDArray[Any]
    """The chunk decoded: three axes, C order, little-endian."""
    configuration: Mapping[str, Any] = field(default_factory=dict)
    """Configuration of the codec, as in the metadata of an array."""

    def decoder(self) -> Decoder:
        """Return a decoder, as for a newly opened array."""
        return self.factory(dict(self.configuration))


class DecoderContract:
    """Inherited tests; a subclass gives the fixture ``case``, which returns a ``DecoderCase``."""

    def test_every_voxel_is_written(self, case: DecoderCase) -> None:
        """The result does not depend on the memory's old content, unless the decoder ``clears``."""
        decoder = case.decoder()
        for before in (0, 0 if getattr(decoder, "clears", False) else _ANYTHING):
            out = np.full_like(case.array, before)

            decoder.decode_into(memoryview(case.chunk), out)
            np.testing.assert_array_equal(out, case.array)

    def test_nothing_beside_the_slice_is_written(self, case: DecoderCase) -> None:
        """The output may be a slice of a larger array."""
        n = case.array.shape[0]
        room = np.full((n + 2, *case.array.shape[1:]), _ANYTHING, case.array.dtype)
        room[1:-1] = 0

        case.decoder().decode_into(memoryview(case.chunk), room[1:-1])
        np.testing.assert_array_equal(room[1:-1], case.array)
        assert (room[[0, -1]] == _ANYTHING).all()

    def test_a_strided_slice_is_written_where_it_says_so(self, case: DecoderCase) -> None:
        """A decoder with ``strided`` writes to slices with gaps on every axis."""
        decoder = case.decoder()
        if not getattr(decoder, "strided", False):
            pytest.skip("it writes C order only")
        room = np.full([2 * n + 1 for n in case.array.shape], _ANYTHING, case.array.dtype)
        slot = room[1::2, 1::2, 1::2]
        slot[...] = 0

        decoder.decode_into(memoryview(case.chunk), slot)
        np.testing.assert_array_equal(slot, case.array)
        slot[...] = _ANYTHING
        assert (room == _ANYTHING).all()

    def test_the_stored_bytes_stay(self, case: DecoderCase) -> None:
        """The decoder does not write to its input, which may be a mapped file."""
        chunk = bytearray(case.chunk)

        case.decoder().decode_into(memoryview(chunk).toreadonly(), np.zeros_like(case.array))
        assert bytes(chunk) == case.chunk

    def test_half_a_chunk_is_refused(self, case: DecoderCase) -> None:
        """A truncated object raises an error."""
        for part in (case.chunk[: len(case.chunk) // 2], b""):
            with pytest.raises(Exception):  # noqa: B017, PT011  each codec has its own
                case.decoder().decode_into(memoryview(part), np.zeros_like(case.array))

    def test_threads_decode_at_once(self, case: DecoderCase) -> None:
        """All threads of a process can use one decoder."""
        decoder, rooms = case.decoder(), [np.zeros_like(case.array) for _ in range(_THREADS * 4)]

        with ThreadPoolExecutor(_THREADS) as pool:
            list(pool.map(lambda out: decoder.decode_into(memoryview(case.chunk), out), rooms))
        for out in rooms:
            np.testing.assert_array_equal(out, case.array)

    def test_the_factory_travels(self, case: DecoderCase) -> None:
        """Spawned workers get the factory by pickle."""
        there = pickle.loads(pickle.dumps(case.factory))  # noqa: S301  made above
        out = np.zeros_like(case.array)

        there(dict(case.configuration)).decode_into(memoryview(case.chunk), out)
        np.testing.assert_array_equal(out, case.array)

    @pytest.mark.parametrize("version", [2, 3])
    def test_a_volume_is_decoded(self, case: DecoderCase, tmp_path: Path, version: int) -> None:
        """A zarr array with the codec is read; the error for a truncated chunk names the array."""
        chunk = _write(tmp_path / "a.zarr", case, version)
        register_decoder(case.name, case.factory)
        try:
            np.testing.assert_array_equal(Volume(tmp_path / "a.zarr").numpy()[0], case.array)
            part = Volume(tmp_path / "a.zarr")[0, 1:, :, 2].numpy()
            np.testing.assert_array_equal(part[0], case.array[1:, :, 2:3])
            close_volumes()
            chunk.write_bytes(case.chunk[: len(case.chunk) // 2])
            with pytest.raises(CorruptVolume, match=r"a\.zarr cannot be decoded"):
                Volume(tmp_path / "a.zarr").numpy()
        finally:
            unregister_decoder(case.name)


def _write(path: Path, case: DecoderCase, version: int) -> Path:
    """Write an array of one chunk, and return the path of the chunk."""
    shape, configuration = list(case.array.shape), dict(case.configuration)
    document: dict[str, Any] = {"zarr_format": version, "shape": shape, "fill_value": 0}
    if version == 2:
        codec = {"id": case.name, **configuration}
        document |= {"chunks": shape, "compressor": codec, "filters": None, "order": "C"}
        document["dtype"] = case.array.dtype.newbyteorder("<").str
        header, chunk = path / ".zarray", path / "0.0.0"
    else:
        keys = {"name": "default", "configuration": {"separator": "/"}}
        grid = {"name": "regular", "configuration": {"chunk_shape": shape}}
        document |= {"node_type": "array", "chunk_grid": grid, "chunk_key_encoding": keys}
        codec = {"name": case.name, "configuration": configuration}
        document["codecs"] = [{"name": "bytes", "configuration": {"endian": "little"}}, codec]
        document["data_type"] = case.array.dtype.name
        header, chunk = path / "zarr.json", path / "c" / "0" / "0" / "0"
    chunk.parent.mkdir(parents=True)
    header.write_text(json.dumps(document))
    chunk.write_bytes(case.chunk)
    return chunk
