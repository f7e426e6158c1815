"""HDF5 and ``.b2nd`` behind URLs: in few requests, by name when something is wrong."""

import subprocess
import sys

import fsspec
import numpy as np
import pytest
from nifti_files import numbered
from s3_server import Fault

from voxpipe.core import Region
from voxpipe.core.errors import BadHeader, TruncatedVolume, UnknownFormat, VolumeReadError
from voxpipe.extensions.formats.blosc2 import read_frame_header
from voxpipe.volumes import Volume, close_volumes

ARRAY = numbered((32, 32, 32))


@pytest.fixture
def hdf5(server):
    """Return the key of a file of 64 chunks in a bucket, far apart from each other."""
    h5py = pytest.importorskip("h5py")
    noise = np.random.default_rng(0).integers(0, 2**15, (64, 128, 128)).astype(np.int16)
    with h5py.File(server.bucket / "a.h5", "w") as file:
        file.create_dataset("raw", data=noise, chunks=(16, 32, 32), compression="gzip")
        file.create_dataset("flat", data=ARRAY)
    return noise


@pytest.fixture
def b2nd(server):
    """Put an array into a bucket."""
    blosc2 = pytest.importorskip("blosc2")
    path = str(server.bucket / "a.b2nd")
    blosc2.asarray(ARRAY, urlpath=path, chunks=(16, 16, 16), blocks=(8, 8, 8))
    return ARRAY


def volume_of(server, name, **options):
    return Volume(f"s3://bucket/{name}", storage_options=server.storage_options, **options)


def ranges(server):
    """Return how many GETs there were, and how many bytes they brought."""
    got = [line for line in server.requests if line.method == "GET"]
    return len(got), sum(line.sent for line in got)


def test_the_chunks_of_a_region_come_in_joined_ranges(server, hdf5):
    """Tables once, in pages; then the chunks of a region, neighbours in one request."""
    volume = volume_of(server, "a.h5", dataset="raw")
    assert volume.shape == (1, *hdf5.shape)
    opened = ranges(server)
    whole = (server.bucket / "a.h5").stat().st_size
    first = volume.read(Region((0, 0, 0), (16, 32, 32)))
    server.forget()

    second = volume.read(Region((1, 2, 3), (16, 64, 64)))

    np.testing.assert_array_equal(first.array[0], hdf5[:16, :32, :32])
    np.testing.assert_array_equal(second.array[0], hdf5[1:16, 2:64, 3:64])
    assert opened[0] <= 3
    assert opened[1] < whole // 4
    # Four chunks lie in two rows, 60 kB apart; the pages of their table are known.
    assert ranges(server)[0] == 1
    assert ranges(server)[1] < whole // 8


def test_a_dataset_in_one_piece_is_read_by_rows(server, hdf5):
    """As ``.npy``: HDF5 itself would read row after row."""
    volume = volume_of(server, "a.h5", dataset="flat")
    assert volume.shape == (1, 32, 32, 32)
    server.forget()

    part = volume.read(Region((4, 0, 0), (6, 32, 32)))

    np.testing.assert_array_equal(part.array[0], ARRAY[4:6])
    assert ranges(server) == (1, 2 * 32 * 32 * 2)


def test_the_header_of_b2nd_needs_no_copy(server, b2nd):
    """Planning reads headers alone; the voxels are copied once, for all volumes and threads."""
    volume = volume_of(server, "a.b2nd")
    assert (volume.shape, volume.chunks, volume.access) == ((1, 32, 32, 32), (8, 8, 8), "stream")
    assert ranges(server)[1] <= 4096
    volume.read(Region((0, 0, 0), (4, 4, 4)))
    close_volumes()
    again = volume_of(server, "a.b2nd")
    server.forget()

    np.testing.assert_array_equal(again.numpy()[0], b2nd)

    assert ranges(server)[1] <= 4096


@pytest.mark.parametrize("name", ["a.h5", "a.b2nd"])
@pytest.mark.parametrize("kind", ["deny", "truncate"])
def test_a_failing_store_is_told_by_its_own_name(server, hdf5, b2nd, name, kind, monkeypatch):
    """Not as a damaged file: who reads it again must know what to mend."""
    monkeypatch.setenv("VOXPIPE_REMOTE_DEADLINE", "0.2")
    options = {"dataset": "raw"} if name == "a.h5" else {}
    volume = volume_of(server, name, **options)
    assert volume.shape
    server.fail(Fault(kind))

    with pytest.raises(VolumeReadError, match=rf"s3://bucket/{name}") as caught:
        volume.numpy()

    assert not isinstance(caught.value, BadHeader)
    assert "nothing" not in str(caught.value)
    server.fail()
    expected = hdf5 if name == "a.h5" else b2nd
    np.testing.assert_array_equal(volume.numpy()[0], expected)


def test_numbers_in_other_files_are_refused(tmp_path):
    """A file behind a URL must not make HDF5 read what lies on the local disk."""
    h5py = pytest.importorskip("h5py")
    (tmp_path / "secret.bin").write_bytes(bytes(64))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        outside = [(str(tmp_path / "secret.bin"), 0, 64)]
        file.create_dataset("outside", (4, 4, 4), "u1", external=outside)
        layout = h5py.VirtualLayout((4, 4, 4), "u1")
        layout[...] = h5py.VirtualSource(str(tmp_path / "b.h5"), "raw", (4, 4, 4))
        file.create_virtual_dataset("virtual", layout)
    fsspec.filesystem("memory").put(str(tmp_path / "a.h5"), "/arrays/other.h5")

    for name in ("outside", "virtual"):
        with pytest.raises(UnknownFormat, match="in other files"):
            _ = Volume("memory://arrays/other.h5", dataset=name).shape


def test_a_cut_b2nd_is_named(tmp_path, b2nd, server):
    """Before anything is copied."""
    path = server.bucket / "a.b2nd"
    path.write_bytes(path.read_bytes()[:-10])

    with pytest.raises(TruncatedVolume, match=r"a\.b2nd holds"):
        _ = volume_of(server, "a.b2nd").shape


def test_the_frame_header_says_what_blosc2_says():
    """Voxpipe's own reading of the header, over types, axes and further layers."""
    blosc2 = pytest.importorskip("blosc2")
    for dtype in ("u1", "<i2", ">f4", "f8", "c8"):
        for shape in ((5, 6), (3, 4, 5), (2, 200, 3, 4)):
            blocks = tuple(min(2, n) for n in shape)
            array = blosc2.asarray(
                np.zeros(shape, dtype), chunks=shape, blocks=blocks, meta={"mine": [b"x"] * 9}
            )

            found = read_frame_header(array.to_cframe()[:4096], "a.b2nd")

            assert (found.shape, found.chunks, found.blocks) == (shape, array.chunks, blocks)
            assert found.dtype == array.dtype


def test_a_process_may_end_with_an_open_file():
    """h5py's driver for file objects crashes when HDF5 closes them after Python has gone."""
    pytest.importorskip("h5py")
    script = """
import fsspec, h5py, io, numpy as np, voxpipe as vp
buffer = io.BytesIO()
with h5py.File(buffer, "w") as file:
    file.create_dataset("raw", data=np.ones((4, 4, 4)), chunks=(2, 2, 2))
fsspec.filesystem("memory").pipe("/a.h5", buffer.getvalue())
volume = vp.Volume("memory://a.h5")
assert volume.numpy().sum() == 64
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, timeout=120, check=False
    )

    assert (ended.returncode, ended.stderr) == (0, b"")
