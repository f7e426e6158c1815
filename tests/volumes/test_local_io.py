"""Two ways to read bare voxels of a local file, one result; and how one of them is chosen."""

import errno
import os
import pickle
from itertools import pairwise
from pathlib import Path

import nibabel
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

from voxpipe.core import Region
from voxpipe.core.context import holding
from voxpipe.core.errors import TruncatedVolume, VolumeError
from voxpipe.storage import file_reader
from voxpipe.storage.file_reader import RowBlocks, choose_io, file_system_at
from voxpipe.storage.ranges import COALESCING, CoalescePolicy, StoredBox
from voxpipe.volumes import Volume, close_volumes
from voxpipe.volumes.formats import raw as local_voxels

MODES = ["mmap", "pread"]
# Larger than a few sectors in every direction of reading, and of odd lengths.
SHAPE = (23, 29, 17)
linux = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="asks for /proc")


def numbered(dtype="i2", shape=SHAPE):
    return np.arange(np.prod(shape)).reshape(shape).astype(dtype)


def nifti(path, dtype):
    header = nibabel.Nifti1Header(endianness=">" if dtype.startswith(">") else "<")
    header.set_data_dtype(np.dtype(dtype).newbyteorder("="))
    nibabel.Nifti1Image(numbered(dtype), np.eye(4), header).to_filename(path)


def pair(path, dtype):
    header = nibabel.nifti1.Nifti1PairHeader(endianness=">" if dtype.startswith(">") else "<")
    header.set_data_dtype(np.dtype(dtype).newbyteorder("="))
    nibabel.Nifti1Pair(numbered(dtype), np.eye(4), header).to_filename(path)


def npy_c(path, dtype):
    np.save(path, numbered(dtype))


def npy_f(path, dtype):
    np.save(path, np.asfortranarray(numbered(dtype)))


def npy_four(path, dtype):
    np.save(path, np.asfortranarray(numbered(dtype, (3, 9, 8, 7))))


def npy_flat(path, dtype):
    np.save(path, np.asfortranarray(numbered(dtype, (9, 8))))


def nrrd(path, dtype):
    sizes = " ".join(map(str, SHAPE))
    order = "big" if dtype.startswith(">") else "little"
    kind = {"i2": "short", "f4": "float"}[dtype[1:]]
    head = f"NRRD0004\ntype: {kind}\ndimension: 3\nsizes: {sizes}\nendian: {order}\nencoding: raw\n"
    path.write_bytes(head.encode() + b"\n" + numbered(dtype).tobytes("F"))


def mha(path, dtype):
    kind = {"i2": "MET_SHORT", "f4": "MET_FLOAT"}[dtype[1:]]
    head = (
        f"ObjectType = Image\nNDims = 3\nBinaryData = True\nElementSpacing = 1 1 1\n"
        f"BinaryDataByteOrderMSB = {dtype.startswith('>')}\nDimSize = {' '.join(map(str, SHAPE))}\n"
        f"ElementType = {kind}\nElementDataFile = LOCAL\n"
    )
    path.write_bytes(head.encode() + numbered(dtype).tobytes("F"))


FORMATS = {
    "nifti": ("a.nii", nifti),
    "gzip": ("a.nii.gz", nifti),
    "pair": ("a.img", pair),
    "npy-c": ("a.npy", npy_c),
    "npy-f": ("a.npy", npy_f),
    "npy-4": ("a.npy", npy_four),
    "npy-2": ("a.npy", npy_flat),
    "nrrd": ("a.nrrd", nrrd),
    "mha": ("a.mha", mha),
}
INDICES = [
    (...,),
    (..., slice(3, 6), slice(1, 2)),
    (0, slice(None, None, -1), slice(1, None, 2), slice(-1, None, -3)),
    (slice(None), slice(2, 7), slice(None), -1),
]


@pytest.mark.parametrize("dtype", ["<i2", ">f4"])
@pytest.mark.parametrize("form", FORMATS)
def test_the_modes_give_the_same_bits(tmp_path, form, dtype, monkeypatch):
    """Every raw format, both byte orders and memory orders, steps forward and backward."""
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "cache"))
    name, write = FORMATS[form]
    write(tmp_path / name, dtype)
    volumes = [Volume(tmp_path / name, io=mode) for mode in MODES]

    for index in INDICES if form != "npy-2" else [(...,), (0, slice(2, 5), slice(None, 3, -1))]:
        mapped, read = (volume[index].numpy() for volume in volumes)
        assert mapped.dtype == read.dtype
        assert mapped.tobytes() == read.tobytes()
    assert len({volume.token for volume in volumes}) == 2
    close_volumes()


@pytest.mark.parametrize("kind", ["hdf5", "tiff"])
def test_arrays_inside_other_files_are_read_too(tmp_path, kind):
    """One piece of an HDF5 file, and a TIFF without compression."""
    array, path = numbered(), tmp_path / f"a.{kind[:3]}"
    if kind == "hdf5":
        path = path.with_suffix(".h5")
        with pytest.importorskip("h5py").File(path, "w") as file:
            file["voxels"] = array
    else:
        path = path.with_suffix(".tif")
        pytest.importorskip("tifffile").imwrite(path, array, contiguous=True)
    volumes = [Volume(path, io=mode) for mode in MODES]

    assert [v.access for v in volumes] == ["view", "range"]
    for index in INDICES:
        mapped, read = (v[index].numpy().tobytes() for v in volumes)
        assert mapped == read
    close_volumes()


lengths = st.lists(st.integers(1, 7), min_size=1, max_size=4)


@given(lengths, st.data(), st.sampled_from([1, 2, 4]), st.integers(0, 60), st.integers(1, 90))
def test_blocks_hold_exactly_the_rows_of_the_box(lengths, data, itemsize, gap, most):
    """Put together they are the box; with gaps between rows they stay within ``most``."""
    ends = [data.draw(st.integers(0, n - 1)) for n in lengths]
    box = [(a, data.draw(st.integers(a + 1, n))) for a, n in zip(ends, lengths, strict=True)]
    file = np.random.default_rng(0).integers(0, 256, np.prod(lengths) * itemsize, np.uint8)
    strides = [int(np.prod(lengths[axis:])) * itemsize for axis in range(1, len(lengths) + 1)]
    blocks = RowBlocks(StoredBox(box, strides, 0), gap=gap, most=most)
    out = np.zeros(blocks.shape, np.uint8)
    spans = []

    for block in blocks:
        spans.append((block.start, block.start + block.size))
        held = file[block.start : block.start + block.size]
        assert held.size == block.size
        assert block.is_whole or block.size <= most
        out[block.target] = as_strided(held, block.shape, block.strides)

    expected = file.reshape(*lengths, itemsize)[tuple(slice(*span) for span in box)]
    assert out.tobytes() == expected.tobytes()
    assert spans == sorted(spans)
    assert all(end <= start for (_, end), (start, _) in pairwise(spans))


class Counted:
    """Stands in for ``os.preadv``: notes what is asked for, and may answer less."""

    def __init__(self, most=1 << 40):
        self.asked, self._most, self._real = [], most, os.preadv

    def __call__(self, fd, buffers, offset):
        (view,) = buffers
        self.asked.append((offset, len(view)))
        got = min(self._real(fd, [view], offset), self._most)
        view[got:] = bytes(len(view) - got)
        return got


@pytest.fixture
def counted(monkeypatch):
    def begin(most=1 << 40):
        counter = Counted(most)
        monkeypatch.setattr(file_reader.os, "preadv", counter)
        return counter

    yield begin
    close_volumes()


def test_rows_are_read_in_joined_runs(tmp_path, counted):
    """A whole region is a few reads; without a gap it is one for each row, and not a byte more."""
    np.save(tmp_path / "a.npy", numbered())
    volume, region = Volume(tmp_path / "a.npy", io="pread"), Region((2, 3, 4), (6, 8, 14))
    expected = numbered()[2:6, 3:8, 4:14]
    reads = counted()
    read = volume.read(region).array[0]
    together, reads.asked = reads.asked, []
    with holding(COALESCING, ({"image": CoalescePolicy(0, 10**6)}, "image")):
        apart = volume.read(region).array[0]

    assert read.tobytes() == apart.tobytes() == expected.tobytes()
    assert len(together) == 1
    assert [size for _, size in reads.asked] == [20] * 4 * 5


def test_the_longest_run_bounds_what_is_read_at_once(tmp_path, counted):
    """Planes that do not fit into one read come one by one."""
    np.save(tmp_path / "a.npy", numbered())
    volume = Volume(tmp_path / "a.npy", io="pread")
    reads = counted()
    with holding(COALESCING, ({"image": CoalescePolicy(10**6, 29 * 17 * 2)}, "image")):
        volume.read(Region((2, 0, 4), (6, 29, 14)))

    assert len(reads.asked) == 4
    assert all(size <= 29 * 17 * 2 for _, size in reads.asked)


def test_short_reads_are_continued(tmp_path, counted):
    """A read that brings fewer bytes is followed by one for the rest."""
    np.save(tmp_path / "a.npy", numbered())
    volume = Volume(tmp_path / "a.npy", io="pread")
    assert volume.shape == (1, *SHAPE)
    reads = counted(1000)

    assert volume.numpy()[0].tobytes() == numbered().tobytes()
    part = volume.read(Region((2, 3, 4), (6, 8, 14))).array[0]
    assert part.tobytes() == numbered()[2:6, 3:8, 4:14].tobytes()
    assert len(reads.asked) > 10


def test_a_file_that_becomes_shorter_is_an_error(tmp_path):
    """Of a map it would be the end of the process; here it names the volume."""
    path = tmp_path / "a.npy"
    np.save(path, numbered("f8"))
    volume = Volume(path, io="pread")
    volume.read(Region((0, 0, 0), (1, 1, 1)))
    os.truncate(path, 5000)

    with pytest.raises(TruncatedVolume, match=r"a\.npy became shorter since it was opened"):
        volume.read(Region((20, 0, 0), (23, 29, 17)))
    close_volumes()


def test_a_failing_disk_is_an_error_of_the_volume(tmp_path, monkeypatch):
    """With what the system said, and where."""
    np.save(tmp_path / "a.npy", numbered())
    volume = Volume(tmp_path / "a.npy", io="pread")
    assert volume.shape[0] == 1

    def failing(*_):
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(file_reader.os, "preadv", failing)
    with pytest.raises(VolumeError, match=r"a\.npy failed: Stale file handle"):
        volume.numpy()
    close_volumes()


@linux
def test_descriptors_are_bounded(tmp_path):
    """A hundred volumes that were read hold as many files as there are handles, and then none."""
    close_volumes()
    before = len(os.listdir("/proc/self/fd"))
    for n in range(100):
        np.save(tmp_path / f"{n}.npy", numbered("i2", (3, 3, 3)))
        Volume(tmp_path / f"{n}.npy", io="pread").numpy()
    most = len(os.listdir("/proc/self/fd")) - before
    close_volumes()

    assert 0 < most <= 64
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize(
    ("wanted", "place", "mode", "why"),
    [
        ("auto", "ext4", "mmap", "ext4 is on a disk of this machine"),
        ("auto", "overlay", "mmap", "overlay"),
        ("auto", "", "mmap", "not known"),
        ("auto", "nfs4", "pread", "nfs4 is reached through a network"),
        ("auto", "fuse.sshfs", "pread", "fuse.sshfs"),
        ("auto", "9p", "pread", "9p"),
        ("auto", "xfs", "mmap", "xfs"),
        ("mmap", "nfs4", "mmap", "was asked for"),
        ("pread", "ext4", "pread", "was asked for"),
    ],
)
def test_the_choice(wanted, place, mode, why):
    """The file system decides unless the user does."""
    choice = choose_io(wanted, place)

    assert choice.mode == mode
    assert why in choice.reason


def test_a_network_file_system_is_read_in_longer_runs(tmp_path, monkeypatch):
    """Found by itself, and the scheme knows its speed."""
    monkeypatch.setattr(local_voxels, "file_system_at", lambda *place: "nfs4")
    nifti(tmp_path / "a.nii", "<i2")
    volume = Volume(tmp_path / "a.nii")
    layout = volume.layout()

    assert (volume.access, layout.io[:12]) == ("range", "pread: nfs4 ")
    assert layout.gap > 64 * 1024
    assert layout.latency > 1e-3
    assert volume.numpy()[0].tobytes() == numbered().tobytes()
    close_volumes()


def test_a_mode_is_refused_where_it_is_written(tmp_path):
    """Not when a worker opens the file."""
    with pytest.raises(ValueError, match="io is one of 'auto', 'mmap', 'pread', 'direct', got"):
        Volume(tmp_path / "a.nii", io="mapped")


def test_a_volume_travels_with_its_mode(tmp_path):
    """A worker reads it in the same way."""
    np.save(tmp_path / "a.npy", numbered())
    volume = pickle.loads(pickle.dumps(Volume(tmp_path / "a.npy", io="pread")))

    assert volume.access == "range"
    close_volumes()


def test_threads_never_see_an_unknown_kind_of_a_network_disk(tmp_path, monkeypatch):
    """A second thread that asks while the first one reads the mounts gets the same answer."""
    mounts = f"1 2 0:3 / {tmp_path} rw - nfs4 server:/data rw\n"
    choices = []

    def read_text(*arguments):
        if not choices:
            choices.append(None)
            choose()
        return mounts

    def choose():
        choices.append(choose_io("auto", file_system_at(str(tmp_path), 10**15)).mode)

    monkeypatch.setattr(Path, "read_text", read_text)
    choose()

    assert choices == [None, "pread", "pread"]


def test_direct_reads_pass_the_page_cache_in_sectors(tmp_path, monkeypatch):
    """Offsets, sizes and addresses are whole sectors; the voxels are those of a map."""
    array = np.arange(3 * 50 * 70 * 90, dtype=np.int16).reshape(3, 50, 70, 90)
    np.save(tmp_path / "a.npy", array)
    volume, asked = Volume(tmp_path / "a.npy", io="direct"), []
    if "direct" not in str(volume.layout().io).split(":")[0]:
        pytest.skip(f"this disk has no direct reads: {volume.layout().io}")
    real = file_reader.os.preadv

    def spy(fd, buffers, offset):
        asked.append((offset, len(buffers[0])))
        return real(fd, buffers, offset)

    monkeypatch.setattr(file_reader.os, "preadv", spy)

    assert (volume.numpy() == array).all()
    assert (volume[1, 7:9, :, 3:80].numpy() == array[1:2, 7:9, :, 3:80]).all()
    assert asked
    assert not any(offset % 4096 or size % 4096 for offset, size in asked)
    os.truncate(tmp_path / "a.npy", 5000)
    with pytest.raises(TruncatedVolume):
        volume.read(Region((40, 0, 0), (50, 70, 90)))
