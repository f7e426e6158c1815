"""The system is told which bytes of local files come next: all of them, once, and not too many."""

import os

import h5py
import nibabel
import numpy as np
import pytest
import tifffile

import voxpipe as vp
from voxpipe.batching.job import Job, tickets_of
from voxpipe.core import Region
from voxpipe.storage import file_reader as hints
from voxpipe.storage.file_reader import RowBlocks
from voxpipe.storage.ranges import StoredBox
from voxpipe.volumes import Volume, close_volumes

pytestmark = pytest.mark.skipif(
    not hasattr(os, "posix_fadvise"), reason="this system cannot be told anything"
)
SHAPE = (30, 23, 17)
REGION = Region((3, 2, 5), (9, 20, 8))


def numbers(shape=SHAPE):
    return np.arange(np.prod(shape), dtype=np.int16).reshape(shape)


def nifti(path):
    nibabel.Nifti1Image(numbers(), np.eye(4)).to_filename(path)


def compressed(path):
    nibabel.Nifti1Image(numbers(), np.eye(4)).to_filename(path)


def npy(path):
    np.save(path, numbers())


def npy_of_channels(path):
    np.save(path, np.asfortranarray(numbers((2, *SHAPE))))


def hdf5(path):
    with h5py.File(path, "w") as file:
        file["voxels"] = numbers()


def tiff(path):
    tifffile.imwrite(path, numbers())


FORMATS = {
    "a.nii": nifti,
    "a.nii.gz": compressed,
    "a.npy": npy,
    "b.npy": npy_of_channels,
    "a.h5": hdf5,
    "a.tif": tiff,
}


@pytest.fixture
def told(monkeypatch):
    """Count the hints of a process whose page cache is empty: (bytes of the file, size)."""
    seen = []

    def advise(fd, start, size, what):
        assert what == os.POSIX_FADV_WILLNEED
        seen.append(os.pread(fd, size, start))

    monkeypatch.setattr(hints, "is_cached", lambda fd, places: False)
    monkeypatch.setattr(os, "posix_fadvise", advise)
    yield seen
    assert hints.HINTS.hinted_bytes == 0
    close_volumes()


@pytest.mark.parametrize("io", ["mmap", "pread"])
@pytest.mark.parametrize("name", FORMATS)
def test_every_voxel_is_told_of(tmp_path, told, name, io):
    """The kernel gets a hint for each voxel of each format, mapped or read."""
    FORMATS[name](tmp_path / name)
    volume = Volume(tmp_path / name, io=io)
    expected = volume.read(REGION).values()

    ticket = volume.prefetch(REGION)

    ticket.close()
    ticket.close()
    found = np.concatenate([np.frombuffer(piece, np.int16) for piece in told])
    assert set(expected.ravel().tolist()) <= set(found.tolist())
    # What lies between the rows of this box is less than the gap: one run holds all of them.
    assert len(told) == 1


def test_a_compressed_file_is_not_decoded_for_it(tmp_path, told):
    """Before its first read there is no copy of which anything could be told."""
    compressed(tmp_path / "a.nii.gz")
    volume = Volume(tmp_path / "a.nii.gz")

    assert not volume.looks_ahead
    assert volume.prefetch(REGION) is None
    assert told == []


def test_what_is_there_is_not_told(tmp_path, told, monkeypatch):
    """Where the cache holds every box, hints are not even thought of but now and then."""
    own = hints.KernelHints()
    monkeypatch.setattr(hints, "is_cached", lambda fd, places: True)
    blocks = RowBlocks(StoredBox([(0, 4), (0, 4)], [16, 2], 0), gap=0, most=64)

    asked = []
    for _ in range(80):
        asks = not own.is_warm or next(own.turns)
        asked.append(asks and own.tell(0, 0, blocks) is None)

    assert asked == [True] * 16 + ([False] * 7 + [True]) * 8
    assert told == []
    monkeypatch.setattr(hints, "is_cached", lambda fd, places: False)
    with open(tmp_path / "file", "wb+") as file:
        own.tell(file.fileno(), 0, blocks).close()
    assert not own.is_warm


def test_the_bytes_that_are_told_are_bounded(tmp_path, told):
    """The next box has to wait until one was read; one that is too large alone is told in part."""
    own = hints.KernelHints(most_bytes=100)
    box = RowBlocks(StoredBox([(0, 4), (0, 8)], [16, 2], 0), gap=0, most=64)  # 64 bytes
    large = RowBlocks(StoredBox([(0, 80), (0, 8)], [16, 2], 0), gap=0, most=640)  # 1280 bytes
    (tmp_path / "file").write_bytes(bytes(2000))

    with open(tmp_path / "file", "rb") as file:
        first = own.tell(file.fileno(), 0, box)
        refused = own.tell(file.fileno(), 0, box)
        first.close()
        second = own.tell(file.fileno(), 0, large)
        second.close()

    assert refused is None
    assert [len(piece) for piece in told] == [64, 100]
    assert own.hinted_bytes == 0


def test_advice_that_is_not_taken_takes_no_room(tmp_path, monkeypatch):
    """Some file systems refuse it: the bytes are read nevertheless, and the next box is told."""

    def refusing(*_):
        raise OSError(22, "Invalid argument")

    monkeypatch.setattr(os, "posix_fadvise", refusing)
    own = hints.KernelHints(most_bytes=100)
    (tmp_path / "file").write_bytes(bytes(200))
    with open(tmp_path / "file", "rb") as file:
        monkeypatch.setattr(hints, "is_cached", lambda fd, places: False)
        hint = own.tell(
            file.fileno(), 0, RowBlocks(StoredBox([(0, 4), (0, 8)], [16, 2], 0), gap=0, most=64)
        )

    assert hint is not None
    hint.close()
    assert own.hinted_bytes == 0


def test_the_next_patches_of_a_job_are_told(tmp_path, told):
    """A job that waits tells of each of its patches; closing its tickets makes room."""
    nifti(tmp_path / "a.nii")
    pipe = vp.from_cases([{"image": str(tmp_path / "a.nii")}]).open_volume()
    pipe = pipe.lazy_patch((4, 5, 6), samples_per_volume=3)

    tickets = tickets_of(Job(0, tuple(pipe)))

    assert len(tickets) == len(told) == 3
    for ticket in tickets:
        ticket.close()


def test_the_page_cache_is_asked(tmp_path):
    """What was just written is there; what the system was told to drop is not."""
    if not hasattr(os, "RWF_NOWAIT"):
        pytest.skip("this system does not answer")
    (tmp_path / "file").write_bytes(bytes(1 << 20))

    with open(tmp_path / "file", "rb") as file:
        try:
            os.preadv(file.fileno(), [bytearray(1)], 0, os.RWF_NOWAIT)
        except OSError:
            pytest.skip("this file system does not answer")
        os.fsync(file.fileno())
        before = hints.is_cached(file.fileno(), [0, 1 << 19])
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        after = hints.is_cached(file.fileno(), [0, 1 << 19])
        # Past its end there is nothing: whoever reads there is told.
        assert not hints.is_cached(file.fileno(), [1 << 21])

    assert before
    if after:
        pytest.skip("this file system keeps what it was told to drop")
