"""A few stored bytes that stand for very many: refused by name, before the memory is taken."""

import bz2
import json
import lzma
import resource
import tracemalloc
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.core import Region
from voxpipe.core.errors import CorruptVolume
from voxpipe.storage.decompress import most_between, un_bzip2, un_lzma, zstd_most_bytes
from voxpipe.volumes import Volume

CHUNK = 16 * 16 * 8 * 2
HUGE = 64 * 1024**2


def zstd_frame(blocks):
    """A frame of zstandard of repeated bytes, which does not say how much it holds."""
    frame = b"\x28\xb5\x2f\xfd" + bytes([0, 0x38])
    for number, size in enumerate(blocks):
        header = size << 3 | 1 << 1 | (number == len(blocks) - 1)
        frame += header.to_bytes(3, "little") + b"\7"
    return frame


def lz4_block(data):
    """What numcodecs makes: the length, then the block."""
    numcodecs = pytest.importorskip("numcodecs")
    return numcodecs.LZ4().encode(data)


def blosc_block(data):
    numcodecs = pytest.importorskip("numcodecs")
    return numcodecs.Blosc("zstd").encode(data)


BOMBS = {
    "bz2": lambda size: bz2.compress(bytes(size)),
    "lzma": lambda size: lzma.compress(bytes(size), preset=0),
    "gzip": lambda size: zlib.compress(bytes(size)),
    "zlib": lambda size: zlib.compress(bytes(size)),
    "lz4": lambda size: lz4_block(bytes(size)),
    "blosc": lambda size: blosc_block(bytes(size)),
    "zstd": lambda size: zstd_frame([128 * 1024] * (size // (128 * 1024)) or [size]),
}


def array_of(folder, stored, *codecs):
    """Write an array of one chunk, whatever its bytes are."""
    numcodecs = pytest.importorskip("numcodecs")
    steps = [
        {"name": f"numcodecs.{codec}", "configuration": {}} if isinstance(codec, str) else codec
        for codec in codecs
    ]
    assert numcodecs
    document = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": [16, 16, 8],
        "data_type": "int16",
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [16, 16, 8]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}, *steps],
        "attributes": {},
    }
    file = folder / "a.zarr" / "c" / "0" / "0" / "0"
    file.parent.mkdir(parents=True)
    file.write_bytes(stored)
    (folder / "a.zarr" / "zarr.json").write_text(json.dumps(document))
    return folder / "a.zarr"


def refused(place):
    """Return the error of reading, and the most memory that Python took for it."""
    volume = Volume(place)
    assert volume.shape == (1, 16, 16, 8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    tracemalloc.start()
    try:
        with pytest.raises(CorruptVolume) as caught:
            volume.read(Region((0, 0, 0), (16, 16, 8)))
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    return str(caught.value), max(taken, grown)


@pytest.mark.parametrize("codec", BOMBS)
def test_a_chunk_that_decodes_to_far_more_is_refused_with_its_file(tmp_path, codec):
    """Wherever it decodes last, no more than the chunk is made of it."""
    text, taken = refused(array_of(tmp_path, BOMBS[codec](HUGE), codec))
    assert "c/0/0/0" in text
    assert taken < HUGE // 4


@pytest.mark.parametrize("codec", BOMBS)
def test_one_in_the_middle_of_a_chain_is_refused_too(tmp_path, codec):
    """Decoded first, with another step to follow."""
    crc = {"name": "numcodecs.shuffle", "configuration": {"elementsize": 2}}
    text, taken = refused(array_of(tmp_path, BOMBS[codec](HUGE), crc, codec))
    assert "c/0/0/0" in text
    assert taken < HUGE // 4


@pytest.mark.parametrize("codec", BOMBS)
@pytest.mark.parametrize("shuffled", [False, True])
def test_a_sound_chunk_of_the_same_codec_is_read(tmp_path, codec, shuffled):
    """The same makers, with as many bytes as the chunk has."""
    shuffle = {"name": "numcodecs.shuffle", "configuration": {"elementsize": 2}}
    steps = (shuffle, codec) if shuffled else (codec,)
    found = Volume(array_of(tmp_path, BOMBS[codec](CHUNK), *steps)).read(
        Region((0, 0, 0), (16, 16, 8))
    )
    assert found.array.shape == (1, 16, 16, 8)
    assert np.unique(found.array).size == 1


@given(st.lists(st.binary(max_size=300), min_size=1, max_size=4))
def test_joined_streams_decode_as_the_library_decodes_them(parts):
    """Up to exactly the bytes that there are."""
    whole = b"".join(parts)
    size = len(whole)
    assert un_bzip2(b"".join(map(bz2.compress, parts)), size) == whole
    packed = b"".join(map(lzma.compress, parts))
    assert un_lzma(packed, size, lzma.FORMAT_XZ) == lzma.decompress(packed) == whole
    if size:
        with pytest.raises(ValueError, match="more than"):
            un_bzip2(b"".join(map(bz2.compress, parts)), size - 1)


@given(st.lists(st.integers(1, 128 * 1024), min_size=1, max_size=5), st.integers(0, 200_000))
def test_the_limit_of_a_frame_is_never_below_what_it_holds(blocks, size):
    """Of frames that say nothing, and of those that the library wrote."""
    numcodecs = pytest.importorskip("numcodecs")
    frame = zstd_frame(blocks)
    assert zstd_most_bytes(frame) == sum(blocks) == len(numcodecs.Zstd().decode(frame))
    content = np.random.default_rng(size).integers(0, 9, size, np.uint8).tobytes()
    assert zstd_most_bytes(numcodecs.Zstd().encode(content)) >= size


def test_what_lies_between_steps_may_be_larger_than_the_chunk():
    """A difference filter stores one byte as eight."""
    assert most_between(10) > 80
