"""``.b2nd`` arrays, written by blosc2 as nnU-Net writes them."""

import multiprocessing
import os
import random
import sys
import warnings

import fsspec
import numpy as np
import pytest
from nifti_files import numbered

from voxpipe.core import IO_COUNTERS, Region
from voxpipe.core.errors import (
    BadHeader,
    MissingDependency,
    VolumeError,
    VolumeNotFound,
)
from voxpipe.testing import StoreCase, StoreContract
from voxpipe.volumes import Volume, close_volumes
from voxpipe.volumes.formats.stored_file import MAPPED_AROUND, MAPS
from voxpipe.volumes.session import MOST_HANDLES

blosc2 = pytest.importorskip("blosc2")


def write(path, array, chunks, blocks):
    """Write with the settings of nnU-Net 2.6's preprocessing."""
    how = {"codec": blosc2.Codec.ZSTD, "clevel": 8}
    blosc2.asarray(
        np.ascontiguousarray(array),
        urlpath=str(path),
        chunks=chunks,
        blocks=blocks,
        cparams=how,
        mmap_mode="w+",
    )
    return path


class TestImage(StoreContract):
    """(C, Z, Y, X), one channel to a chunk."""

    @pytest.fixture
    def case(self, tmp_path):
        array = numbered((2, 9, 10, 11), np.float32) / 4
        path = write(tmp_path / "case_0000.b2nd", array, (1, 9, 8, 8), (1, 4, 4, 4))
        return StoreCase(path, array, np.eye(4))


class TestSegmentation(StoreContract):
    @pytest.fixture
    def case(self, tmp_path):
        array = numbered((1, 5, 6, 7), np.int16) - 1
        path = write(tmp_path / "case_0000_seg.b2nd", array, (1, 5, 6, 7), (1, 2, 3, 4))
        return StoreCase(path, array, np.eye(4))


class TestSpatialOnly(StoreContract):
    @pytest.fixture
    def case(self, tmp_path):
        array = numbered((5, 6, 7), np.uint8)
        path = write(tmp_path / "a.b2nd", array, (5, 6, 7), (2, 3, 4))
        return StoreCase(
            path, array[None], np.diag([3.0, 2, 1, 1]), {"affine": np.diag([3, 2, 1, 1])}
        )


def test_a_file_that_is_cut_while_it_is_read_is_an_error_where_it_is_not_mapped(tmp_path):
    """The kernel ends a process that touches what is gone behind a map."""
    array = numbered((1, 16, 16, 16), np.int16)
    path = write(tmp_path / "a.b2nd", array, (1, 8, 16, 16), (1, 4, 8, 8))
    volume = Volume(path, io="pread")

    np.testing.assert_array_equal(volume.numpy(), array)
    with open("/proc/self/maps") as maps:
        assert str(path) not in maps.read()
    os.truncate(path, path.stat().st_size // 2)
    with pytest.raises(VolumeError, match=r"a\.b2nd"):
        volume.read(Region((0, 0, 0), (16, 16, 16)))


def test_only_the_blocks_of_a_region_count(tmp_path):
    """blosc2 decodes blocks, so these are the unit in which reading is counted."""
    array = numbered((1, 8, 8, 8), np.int16)
    volume = Volume(write(tmp_path / "a.b2nd", array, (1, 8, 8, 8), (1, 4, 4, 4)))
    assert volume.chunks == (4, 4, 4)
    before = IO_COUNTERS.snapshot()

    volume.read(Region((3, 0, 0), (5, 4, 4)))

    assert (IO_COUNTERS.snapshot() - before).bytes_read == 2 * 4**3 * 2


def test_what_is_mapped_around_a_block_counts(tmp_path, monkeypatch):
    """Linux maps 64 KiB around each page that is touched: small blocks take more than they hold."""
    counted = []
    monkeypatch.setattr(MAPS, "touch", lambda file_map, size: counted.append(size))
    path = write(tmp_path / "a.b2nd", numbered((1, 8, 8, 8)), (1, 8, 8, 8), (1, 4, 4, 4))

    Volume(path).read(Region((3, 0, 0), (5, 4, 4)))

    assert counted == [2 * (path.stat().st_size / 8 + MAPPED_AROUND)]


def test_one_thread_decodes(tmp_path):
    """The decoder of a volume has no threads of its own: workers fill all cores."""
    path = write(tmp_path / "a.b2nd", numbered((1, 8, 8, 8)), (1, 8, 8, 8), (1, 4, 4, 4))
    volume = Volume(path)

    assert volume._backend().blocks.items.dparams.nthreads == 1


def read_all(folder, damaged):
    """Return what each damaged file was refused with."""
    refused = []
    for number, data in enumerate(damaged):
        file = folder / f"{number}.b2nd"
        file.write_bytes(data)
        close_volumes()
        try:
            _ = Volume(file)[:, 0, 0, 0]
        except VolumeError as error:
            refused.append((file.name, str(error)))
    return refused


def whole_file(folder):
    """Return the bytes of a sound file."""
    return write(
        folder / "whole.b2nd", numbered((1, 5, 6, 7)), (1, 5, 6, 7), (1, 2, 3, 4)
    ).read_bytes()


def test_a_file_that_is_cut_short_is_named(tmp_path):
    """Wherever it ends; and no file stays open."""
    whole = whole_file(tmp_path)

    refused = read_all(tmp_path, [whole[: n * len(whole) // 50] for n in range(50)])

    assert len(refused) == 50
    assert [text for name, text in refused if name not in text] == []


def answer_all(connection, folder, damaged):
    connection.send(read_all(folder, damaged))


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="cannot fork")
def test_changed_bytes_are_refused_by_name_or_read(tmp_path):
    """blosc2 checks no sums; but nothing crashes, and what is refused is named."""
    whole, generator, damaged = whole_file(tmp_path), random.Random(0), []
    for _ in range(200):
        changed = bytearray(whole)
        changed[generator.randrange(len(whole))] ^= 1 << generator.randrange(8)
        damaged.append(bytes(changed))
    damaged.append(blosc2.SChunk(data=b"bytes" * 100).to_cframe())  # sound, and no array
    ours, theirs = multiprocessing.Pipe()
    # In a child, because blosc2 keeps open what it refuses.
    child = multiprocessing.get_context("fork").Process(
        target=answer_all, args=(theirs, tmp_path, damaged)
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads
        child.start()
    theirs.close()
    assert ours.poll(60)
    refused = ours.recv()
    child.join(60)
    ended = child.exitcode
    child.close()
    ours.close()

    assert ended == 0
    assert len(refused) > 30
    assert [text for name, text in refused if name not in text] == []
    assert refused[-1][0] == "200.b2nd"


def test_what_is_no_array(tmp_path, monkeypatch):
    """A missing file, another file, five axes, a missing library."""
    (tmp_path / "other.b2nd").write_bytes(b"what is this?")
    write(tmp_path / "five.b2nd", numbered((1, 2, 1, 2, 1)), (1,) * 5, (1,) * 5)

    for name, error, message in (
        ("none.b2nd", VolumeNotFound, "none"),
        ("other.b2nd", BadHeader, r"other\.b2nd is no sound"),
        ("five.b2nd", BadHeader, "5 axes"),
    ):
        with pytest.raises(error, match=message):
            _ = Volume(tmp_path / name).shape
    with pytest.raises(TypeError, match="level"):
        _ = Volume(tmp_path / "five.b2nd", level=1).shape
    with pytest.raises(VolumeNotFound, match=r"memory://remote/none\.b2nd"):
        _ = Volume("memory://remote/none.b2nd").shape
    monkeypatch.setitem(sys.modules, "blosc2", None)
    with pytest.raises(MissingDependency, match=r"five\.b2nd needs blosc2"):
        _ = Volume(tmp_path / "five.b2nd").shape


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="this system lists no descriptors")
def test_copies_of_remote_files_are_few_though_all_headers_came_before(tmp_path):
    """A planner asks for headers first: each copy takes a descriptor when its voxels are read."""
    array = np.ones((1, 4, 4, 4), np.float32)
    path = write(tmp_path / "a.b2nd", array, (1, 4, 4, 4), (1, 4, 4, 4))
    fsspec.filesystem("memory").pipe_file("/headers/a.b2nd", path.read_bytes())
    shifts = [np.diag([1.0 + n, 1, 1, 1]) for n in range(80)]
    volumes = [Volume("memory://headers/a.b2nd", affine=affine) for affine in shifts]
    close_volumes()
    before = len(os.listdir("/proc/self/fd"))

    assert {volume.shape for volume in volumes} == {(1, 4, 4, 4)}
    assert {float(volume.numpy().sum()) for volume in volumes} == {64.0}

    # The handles that are kept, and descriptors of threads.
    assert len(os.listdir("/proc/self/fd")) - before < MOST_HANDLES + 16
