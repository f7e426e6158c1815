"""Our reader of zarr and zarr-python give the same bytes, however the array is stored."""

import math
import tempfile
import warnings

import numcodecs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr_arrays import wrapped_codecs

from voxpipe.core import Region
from voxpipe.storage.file_reader import LocalRanges
from voxpipe.volumes.chunks.chunk_cache import ChunkCache
from voxpipe.volumes.formats.zarr_array import ZarrArray, open_node
from voxpipe.volumes.formats.zarr_chunks import NotOurs
from voxpipe.volumes.formats.zarr_nodes import open_ranges_node

zarr = pytest.importorskip("zarr")
codecs = zarr.codecs

BLOSC = [
    (name, shuffle) for name in ("lz4", "lz4hc", "zstd", "zlib", "blosclz") for shuffle in (0, 1, 2)
]
DTYPES = ["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "?", "c8", "c16"]
V2 = {
    "none": None,
    "zstd": numcodecs.Zstd(3),
    "zstd checked": numcodecs.Zstd(1, checksum=True),
    "gzip": numcodecs.GZip(1),
    "zlib": numcodecs.Zlib(1),
    "lz4": numcodecs.LZ4(),
    "bz2": numcodecs.BZ2(1),
    "lzma": numcodecs.LZMA(preset=0),
    **{f"blosc {n} {s}": numcodecs.Blosc(n, 1, s) for n, s in BLOSC},
}
SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
V3 = {
    "none": [],
    "zstd": [codecs.ZstdCodec(level=3)],
    "zstd checked": [codecs.ZstdCodec(level=1, checksum=True)],
    "gzip": [codecs.GzipCodec(level=1)],
    "crc32c": [codecs.Crc32cCodec()],
    "zstd, crc32c": [codecs.ZstdCodec(level=1), codecs.Crc32cCodec()],
    "gzip, zstd": [codecs.GzipCodec(level=1), codecs.ZstdCodec(level=1)],
    **{
        f"blosc {n} {s}": [codecs.BloscCodec(cname=n, clevel=1, shuffle=SHUFFLES[s])]
        for n, s in BLOSC
    },
}


@st.composite
def stored(draw):
    """Return how an array is stored, as keywords of ``create_array``, and where it is written."""
    version = draw(st.sampled_from([2, 3]))
    ndim = draw(st.integers(1, 4))
    lengths = st.tuples(*[st.integers(1, 9)] * ndim)
    shape, chunks = draw(lengths), draw(st.tuples(*[st.integers(1, 4)] * ndim))
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    fill = draw(st.sampled_from([0, 1, 7] + [np.nan, np.inf, -1.5] * (dtype.kind == "f")))
    how = {"shape": shape, "chunks": chunks, "fill_value": dtype.type(fill), "zarr_format": version}
    swapped = draw(st.booleans()) and dtype.itemsize > 1
    if version == 2:
        how["dtype"] = dtype.newbyteorder(">") if swapped else dtype
        how["compressors"] = V2[draw(st.sampled_from(sorted(V2)))]
        how["order"] = draw(st.sampled_from("CF"))
        how["chunk_key_encoding"] = {"name": "v2", "separator": draw(st.sampled_from("./"))}
        if dtype.kind in "ui" and draw(st.integers(0, 5)) == 0:
            how["filters"] = [numcodecs.Delta(how["dtype"])]
    else:
        how["dtype"] = dtype
        how["compressors"] = V3[draw(st.sampled_from(sorted(V3)))]
        if dtype.itemsize > 1:
            how["serializer"] = codecs.BytesCodec(endian="big" if swapped else "little")
        if draw(st.booleans()):
            how["filters"] = [codecs.TransposeCodec(order=draw(st.permutations(range(ndim))))]
        if draw(st.booleans()):
            per_shard = draw(st.tuples(*[st.integers(1, 3)] * ndim))
            shape_of_shard = tuple(c * n for c, n in zip(chunks, per_shard, strict=True))
            where = draw(st.sampled_from(["start", "end"]))
            how["shards"] = {"shape": shape_of_shard, "index_location": where}
    return how, draw(regions(shape)), draw(regions(shape)), draw(regions(shape))


def regions(shape):
    """Return any regions inside a shape, empty ones included."""
    ends = [st.tuples(st.integers(0, n), st.integers(0, n)).map(sorted) for n in shape]
    return st.tuples(*ends).map(lambda e: Region(tuple(a for a, _ in e), tuple(b for _, b in e)))


def numbers(shape, dtype, seed=0):
    """Return numbers of any type, many of them the fill value."""
    values = np.random.default_rng(seed).integers(0, 100, shape)
    return (values % 2 == 0) if dtype.kind == "b" else values.astype(dtype)


@given(stored())
@settings(max_examples=settings.default.max_examples * 3 // 2)
def test_both_give_the_same_bytes(example):
    """Codecs, types, byte orders, shards, missing chunks and regions of every kind."""
    how, written, *asked = example
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # zarr-python warns of what other libraries cannot read
        theirs = zarr.create_array(folder, **how)
        theirs[written.slices] = numbers(written.shape, np.dtype(how["dtype"]))
        # zarr-python over our store of ranges, which undoes compressors.
        left = open_ranges_node(LocalRanges(folder), "a.zarr")
        for region in (Region.of_shape(theirs.shape), *asked[:1]):
            expected, found = np.asarray(theirs[region.slices]), np.asarray(left[region.slices])
            assert (found.dtype, found.tobytes()) == (expected.dtype, expected.tobytes())
        try:
            ours = open_node(LocalRanges(folder), "a.zarr", ChunkCache(10_000), "a")
        except NotOurs:
            # Left to zarr-python: filters of version 2, and how it spells complex fill values.
            assert how["zarr_format"] == 2
            assert how.get("filters") or how["dtype"].kind == "c"
            return
        assert isinstance(ours, ZarrArray)
        assert (ours.shape, ours.chunks) == (theirs.shape, theirs.chunks)
        # Twice: first from the disk, then from the cache.
        for region in (Region.of_shape(theirs.shape), *asked, *asked):
            expected = np.asarray(theirs[region.slices])
            found = ours.read(region)

            assert found.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")
            native = found.astype(found.dtype.newbyteorder("="))
            assert native.tobytes() == expected.astype(expected.dtype.newbyteorder("=")).tobytes()


@pytest.mark.parametrize("codec", ["LZ4", "Zlib", "BZ2", "Shuffle", "Zstd", "GZip", "Blosc"])
def test_codecs_of_numcodecs_in_version_3(tmp_path, codec):
    """What zarr-python writes through numcodecs is read without it, or left to it."""
    array = numbers((6, 7, 8), np.dtype("i2"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        settings = {"elementsize": 2} if codec == "Shuffle" else {}
        chosen = getattr(wrapped_codecs, codec)(**settings)
        zarr.create_array(tmp_path / "a", data=array, chunks=(3, 4, 5), compressors=[chosen])

    ours = open_node(LocalRanges(str(tmp_path / "a")), "a", ChunkCache(0), "a")

    np.testing.assert_array_equal(ours.read(Region.of_shape(array.shape)), array)


def test_zstandard_frames_say_how_much_they_hold():
    """Each width of the field is read as the library writes it; foreign bytes say nothing."""
    from voxpipe.volumes.formats.zarr_chunks import zstd_content_bytes

    sizes = [0, 1, 255, 256, 300, 65_791, 65_792, 2**20]
    found = [zstd_content_bytes(numcodecs.Zstd(1).encode(bytes(n))) for n in sizes]

    assert sizes == found
    assert zstd_content_bytes(b"not a frame") is None
    assert math.prod(sizes) == 0
