"""Chunks in one call of the native library: the voxels, counts and errors of one at a time."""

import ctypes
import os
import time
import weakref
from contextlib import closing, nullcontext

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from sampled import sampled

from voxpipe.core import IO_COUNTERS, Region
from voxpipe.core.errors import VoxpipeError
from voxpipe.storage.file_reader import HINTS, LocalRanges
from voxpipe.volumes import Volume, close_volumes
from voxpipe.volumes.chunks import chunked_array
from voxpipe.volumes.chunks import native_chunks as native
from voxpipe.volumes.chunks.chunk_cache import CHUNKS
from voxpipe.volumes.formats import zarr_chunks
from voxpipe.volumes.formats.zarr_chunks import ArrayMetadata, ShardedChunks

blosc2 = pytest.importorskip("blosc2")
pytestmark = pytest.mark.skipif(not native.is_available(3), reason="no native library")

SHAPE, CHUNK = (21, 18, 26), (8, 6, 10)
BLOSC = zarr.codecs.BloscCodec
CODECS = {
    "plain": None,
    "lz4": BLOSC(cname="lz4", shuffle="bitshuffle"),
    "blosc zstd": BLOSC(cname="zstd", shuffle="shuffle"),
    "zstd": zarr.codecs.ZstdCodec(level=1),
    "gzip": zarr.codecs.GzipCodec(level=1),
}
TYPES = ("int16", "uint8", "float32", ">u2")
OTHERS = (">u2", "float32", "uint8", "int16", "int8")


def voxels(dtype):
    """Noise beside zeros: some chunks are not stored."""
    array = np.random.default_rng(0).integers(0, 200, SHAPE)
    array[:, 6:12] = 0
    return array.astype(dtype)


def write(path, form, dtype, codec):
    """Write one volume; ``form`` is chunks, shards or blocks of blosc2."""
    array = voxels(dtype)
    if form == "b2nd":
        array = array.astype(array.dtype.newbyteorder("="))
        blosc2.asarray(array, urlpath=str(path), mode="w", chunks=(16, 12, 20), blocks=CHUNK)
        return path
    shards = (16, 12, 20) if form == "shards" else None
    zarr.create_array(
        path, data=array, chunks=CHUNK, shards=shards, compressors=CODECS[codec], fill_value=0
    )
    return path


@pytest.fixture(params=[False, True], ids=["cold", "warm"])
def _warm(request, monkeypatch):
    """Files are read in joined requests, or by the native library, which is for warm ones."""
    monkeypatch.setattr(HINTS, "is_warm", request.param)


def read(path, region, monkeypatch, *, is_native, kept_bytes=0, twice=False):
    """Return what a read gives, or the text of what it raises, and the bytes that it decoded."""
    monkeypatch.setenv("VOXPIPE_NATIVE", "" if is_native else "0")
    close_volumes()
    CHUNKS.clear()
    before = IO_COUNTERS.snapshot()
    with closing(CHUNKS.lend(kept_bytes)) if kept_bytes else nullcontext():
        volume = Volume(path)
        try:
            found = [volume.read(region).array for _ in range(1 + twice)][-1]
        except VoxpipeError as error:
            return f"{type(error).__name__}: {error}", 0
    return found, (IO_COUNTERS.snapshot() - before).bytes_decoded


def regions():
    """Draw a region, which touches some chunks whole and cuts others."""
    spans = [st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)).map(sorted) for n in SHAPE]
    return st.tuples(*spans).map(
        lambda ends: Region([a for a, _ in ends], [b + 1 for _, b in ends])
    )


FORMS = [
    *(("chunks", dtype, codec) for dtype, codec in zip(TYPES, CODECS, strict=False)),
    *(
        ("shards", dtype, codec)
        for dtype, codec in zip((*TYPES[::-1], "int8"), CODECS, strict=True)
    ),
    *(("b2nd", dtype, "") for dtype in TYPES[:3]),
]


@pytest.mark.usefixtures("_warm")
@pytest.mark.parametrize(("form", "dtype", "codec"), sampled(FORMS))
def test_the_same_voxels_and_counts(tmp_path, monkeypatch, form, dtype, codec):
    """Kept chunks, kept ones among others, and none; read again while they are kept."""
    path = write(tmp_path / f"a.{'b2nd' if form == 'b2nd' else 'zarr'}", form, dtype, codec)
    expected = voxels(dtype)

    @given(regions(), st.sampled_from([0, 5000, 10**6]))
    @settings(max_examples=20, deadline=None)
    def check(region, kept_bytes):
        how = {"kept_bytes": kept_bytes, "twice": kept_bytes > 0}
        found, count = read(path, region, monkeypatch, is_native=True, **how)
        slow, slow_count = read(path, region, monkeypatch, is_native=False, **how)

        np.testing.assert_array_equal(found[0], expected[region.slices])
        np.testing.assert_array_equal(slow, found)
        assert count == slow_count

    check()


@pytest.mark.usefixtures("_warm")
@pytest.mark.parametrize(
    ("form", "codec"), [("shards", codec) for codec in CODECS] + [("b2nd", "")]
)
def test_damaged_bytes_have_the_same_error(tmp_path, monkeypatch, form, codec):
    """Or the same voxels, where nothing tells that they are damaged."""
    path = write(tmp_path / f"a.{'b2nd' if form == 'b2nd' else 'zarr'}", form, "int16", codec)
    file = path if form == "b2nd" else path / "c" / "0" / "0" / "0"
    sound = file.read_bytes()
    region = Region((0, 0, 0), SHAPE)

    # Of a frame only what is in its chunks: blosc2 keeps a file open whose header it refuses.
    first = sound.index(b"b2nd") + 200 if form == "b2nd" else 0
    last = len(sound) - 1 - 300 * (form == "b2nd")

    @given(st.integers(first, last), st.integers(1, 255), st.booleans())
    @settings(max_examples=20, deadline=None)
    def check(at, change, cut):
        damaged = bytearray(sound)
        damaged[at] ^= change
        file.write_bytes(damaged[:at] if cut and form != "b2nd" else damaged)
        found, _ = read(path, region, monkeypatch, is_native=True)
        slow, _ = read(path, region, monkeypatch, is_native=False)

        if isinstance(slow, str):
            assert found == slow
        else:
            np.testing.assert_array_equal(found, slow)

    check()


def test_all_chunks_of_a_read_are_decoded_in_one_call(tmp_path, monkeypatch):
    """And none of them in Python."""
    path = write(tmp_path / "a.zarr", "shards", "int16", "lz4")
    placed = []
    place_chunks = native.place_chunks

    def noted(out, shape, plan, rows, *args, **more):
        answer = place_chunks(out, shape, plan, rows, *args, **more)
        placed.append((rows[:, native.STATUS] == native.SUCCESS).tolist())
        return answer

    monkeypatch.setattr(chunked_array, "place_chunks", noted)
    Volume(path).read(Region((0, 0, 0), SHAPE))

    assert placed == [[True] * 27]


def test_warm_files_are_read_by_the_native_library(tmp_path, monkeypatch):
    """No request is made in Python; that a shard is written anew is noted, and it is closed."""
    path = write(tmp_path / "a.zarr", "shards", "int16", "lz4")
    volume = Volume(path)
    region = Region((0, 0, 0), SHAPE)
    expected = volume.read(region).array.copy()
    monkeypatch.setattr(HINTS, "is_warm", True)
    descriptors = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0

    with monkeypatch.context() as without_python:
        without_python.setattr(LocalRanges, "get_ranges", None)
        np.testing.assert_array_equal(volume.read(region).array, expected)

    if descriptors:
        assert len(os.listdir("/proc/self/fd")) == descriptors
    moment = time.time_ns()
    assert volume.probe().is_as_of(moment)
    shard = path / "c" / "0" / "0" / "0"
    shard.write_bytes(shard.read_bytes())
    volume.read(region)
    assert not volume.probe().is_as_of(moment)


def test_places_that_two_threads_make_are_made_once(tmp_path):
    """While one waits for the lock another one makes them, and both get these."""
    root = str(tmp_path)
    size, most = (4, 4, 4), 1000
    array = ArrayMetadata(size, (2, 2, 2), np.dtype("u1"), 0, (), (0, 1, 2), "c/", "/", size)
    shards = ShardedChunks(array, LocalRanges(root))
    lock, made = shards._lock, []

    class Late:
        def __enter__(self):
            shards._lock = lock
            made.append(shards.native_places(most))
            lock.acquire()

        def __exit__(self, *error):
            lock.release()

    shards._lock = Late()

    assert shards.native_places(most) is made[0]


def test_an_index_that_is_learnt_twice_stays():
    """Native code of another thread may look into the first one."""
    places = native.ChunkPlaces((2,), (1,))
    first = weakref.ref(table := np.zeros((3, 2), np.uint64))
    places.set_shard(0, "a", table, 10)
    del table

    places.set_shard(0, "a", np.zeros((3, 2), np.uint64), 10)

    assert first() is not None


def test_rooms_of_an_attempt_that_failed_are_not_written_to(tmp_path, monkeypatch):
    """They are gone, where nothing is kept when the bytes have come by another way."""
    volume = Volume(write(tmp_path / "a.zarr", "shards", "int16", "lz4"))
    place_chunks, rooms = native.place_chunks, []

    def failing(out, shape, plan, rows, fill_row, members, source, keep=None, **_more):
        if isinstance(source, native.LocatedChunks):
            rows[members, native.ROOM] = 1
            return 0, members
        rooms.extend(rows[members, native.ROOM].tolist())
        return place_chunks(out, shape, plan, rows, fill_row, members, source, keep)

    monkeypatch.setattr(chunked_array, "place_chunks", failing)
    monkeypatch.setattr(HINTS, "is_warm", True)

    assert (volume.read(Region((0, 0, 0), SHAPE)).array == voxels("int16")).all()
    assert rooms == [0] * 27


def test_a_frame_of_too_many_chunks_is_read_without_a_table_of_them(tmp_path, monkeypatch):
    """Its blocks are decoded one by one: to the same voxels, with as many bytes counted."""
    path = write(tmp_path / "a.b2nd", "b2nd", "int16", "")  # of 8 chunks
    region = Region((3, 2, 1), (20, 17, 25))
    expected = read(path, region, monkeypatch, is_native=True)

    def refused(*_):
        raise AssertionError("a table was made")

    monkeypatch.setattr(native.ChunkPlaces, "MOST_UNITS", 7)
    monkeypatch.setattr(native.ChunkPlaces, "set_frame", refused)
    found = read(path, region, monkeypatch, is_native=True)

    np.testing.assert_array_equal(found[0], expected[0])
    assert found[1] == expected[1]


def test_rows_hold_no_room_after_the_call(tmp_path, monkeypatch):
    """Of chunks that were decoded to be kept: the cache may let go of them before the next one."""
    volume = Volume(write(tmp_path / "a.zarr", "shards", "int16", "lz4"))
    place_chunks, rooms, kept = native.place_chunks, [], []

    def noted(out, shape, plan, rows, fill_row, members, source, keep, **_more):
        def keep_all(plan, members, arrays, addresses, is_stored):
            kept.extend(addresses.tolist())
            keep(plan, members, arrays, addresses, is_stored)

        answer = place_chunks(out, shape, plan, rows, fill_row, members, source, keep_all)
        rooms.extend(rows[members, native.ROOM].tolist())
        return answer

    monkeypatch.setattr(chunked_array, "place_chunks", noted)
    CHUNKS.clear()
    with closing(CHUNKS.lend(10**6)):
        assert (volume.read(Region((0, 0, 0), SHAPE)).array == voxels("int16")).all()

    assert len(kept) == 27
    assert all(kept)
    assert rooms == [0] * 27


def frame_of_zstd(size, said):
    """Return a frame of RFC 8878 that says ``said`` bytes, or nothing, and holds ``size``."""
    head = b"\x28\xb5\x2f\xfd" + (
        b"\x00\x58" if said is None else b"\xa0" + said.to_bytes(4, "little")
    )
    return head + (size << 3 | 0b011).to_bytes(3, "little") + b"\x05"


WHOLE = int(np.prod(CHUNK)) * 2
FIELDS = {"flags": (2, 1), "item": (3, 1), "decoded": (4, 4), "block": (8, 4), "stored": (12, 4)}
WRONG = {
    "flags": [0xFF, 0x02, 0x12],
    "item": [0, 3, 255],
    "decoded": [0, 1, WHOLE - 1, WHOLE + 1, 2**31 - 1, 2**31, 2**32 - 1],
    "block": [0, 1, WHOLE + 1, 2**31 - 1, 2**31, 2**32 - 1],
    "stored": [0, 15, 16, 2**31 - 1, 2**31, 2**32 - 1],
}
CRAFTED = [
    *(
        (codec, (name, value))
        for codec in ("lz4", "b2nd")
        for name in WRONG
        for value in WRONG[name]
    ),
    *(("zstd", frame_of_zstd(*frame)) for frame in ((WHOLE + 1, WHOLE), (WHOLE * 20, WHOLE))),
    *(("zstd", frame_of_zstd(*frame)) for frame in ((WHOLE + 1, None), (9, WHOLE), (WHOLE, 2**31))),
    ("zstd", frame_of_zstd(WHOLE, WHOLE) * 2),
]


@pytest.mark.usefixtures("_warm")
@pytest.mark.parametrize("codec", ["lz4", "b2nd", "zstd"])
def test_no_decoder_writes_beyond_a_chunk_whatever_its_header_says(tmp_path, monkeypatch, codec):
    """Guarded rooms stay untouched; the read gives the voxels, or the error of one at a time."""
    monkeypatch.setenv("VOXPIPE_POISON", "1")
    form = "b2nd" if codec == "b2nd" else "chunks"
    path = write(tmp_path / f"a.{'b2nd' if form == 'b2nd' else 'zarr'}", form, "int16", codec)
    file = path if form == "b2nd" else path / "c" / "0" / "0" / "0"
    sound = file.read_bytes()
    # Where a frame's header ends its first chunk begins, at which blosc2 looks first of all.
    begin = int.from_bytes(sound[11:15], "big") if form == "b2nd" else 0
    begin += int.from_bytes(sound[begin + 12 : begin + 16], "little") if form == "b2nd" else 0
    region = Region((0, 0, 0), SHAPE)
    for _, wrong in (one for one in CRAFTED if one[0] == codec):
        damaged = bytearray(sound)
        if isinstance(wrong, bytes):
            damaged = wrong
        else:
            (at, length), value = FIELDS[wrong[0]], wrong[1]
            damaged[begin + at : begin + at + length] = value.to_bytes(length, "little")
        file.write_bytes(damaged)
        found, _ = read(path, region, monkeypatch, is_native=True)
        slow, _ = read(path, region, monkeypatch, is_native=False)
        if form == "b2nd":  # without a check sum a damaged block is any voxels, or an error
            continue
        assert found == slow if isinstance(slow, str) else np.array_equal(found, slow), wrong


def test_what_is_written_beyond_a_chunk_is_noticed(tmp_path, monkeypatch):
    """Where unread voxels are poisoned, bytes follow each chunk that no decoder may write."""
    path = write(tmp_path / "a.zarr", "chunks", "uint8", "zstd")
    size = int(np.prod(CHUNK))
    pointer, number = ctypes.c_void_p, ctypes.c_size_t

    def decode(target, room, _data, _length):
        ctypes.memset(target, 0, room + 1)
        return room

    calls = (
        ctypes.CFUNCTYPE(number, pointer, number, pointer, number)(decode),
        ctypes.CFUNCTYPE(ctypes.c_ulonglong, pointer, number)(lambda _data, _length: size),
    )
    places = [ctypes.cast(call, pointer).value for call in calls]
    kind = native.native_decoder("zstd").kind
    monkeypatch.setattr(
        zarr_chunks, "native_decoder", lambda _: native.NativeDecoder(kind, *places)
    )
    monkeypatch.setenv("VOXPIPE_POISON", "1")
    close_volumes()

    with pytest.raises(RuntimeError, match=f"beyond the {size} bytes"):
        Volume(path).read(Region((0, 0, 0), SHAPE))
    close_volumes()
