"""Bytes of a bucket that make no sense: read again before the file is called damaged."""

import nibabel
import numpy as np
import pytest
from s3_server import Fault
from sampled import sampled

from voxpipe.core import Region
from voxpipe.core.errors import CorruptVolume, VolumeChanged, VolumeReadError
from voxpipe.extensions.formats import blosc2 as blosc2_remote
from voxpipe.extensions.formats.blosc2 import frame_sizes
from voxpipe.storage.read_ahead import AHEAD
from voxpipe.storage.retry import LOOKS, read_anew
from voxpipe.volumes import Volume, close_volumes

zarr = pytest.importorskip("zarr")
NAMES = ["a.zarr", "shards.zarr", "a.zarr.zip", "a.nii.gz", "a.h5", "a.tif", "a.b2nd"]
# Of a chunk of blosc2: then come the places of its blocks.
CHUNK_HEAD = 32
PART = Region((3, 2, 1), (20, 18, 15))


@pytest.fixture
def volume(server, client, ramp, request, tmp_path, monkeypatch):
    """Return a volume in a bucket whose stored bytes have check sums."""
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "cache"))
    name, path = request.param, server.bucket / request.param
    if name.endswith(".nii.gz"):
        nibabel.save(nibabel.Nifti1Image(ramp, np.eye(4)), path)
    elif name.endswith(".h5"):
        with pytest.importorskip("h5py").File(path, "w") as file:
            file.create_dataset("a", data=ramp, chunks=(8, 10, 16), compression="gzip")
    elif name.endswith(".b2nd"):
        pytest.importorskip("blosc2").asarray(ramp, chunks=(24, 20, 16), urlpath=str(path))
    elif name.endswith(".tif"):
        pytest.importorskip("tifffile").imwrite(path, ramp.T, rowsperstrip=5, compression="zlib")
    else:
        how = {"shards": (12, 20, 16)} if name.startswith("shards") else {}
        store = zarr.storage.ZipStore(path, mode="w") if name.endswith("zip") else path
        stored = zarr.create_array(
            store,
            shape=ramp.shape,
            dtype=ramp.dtype,
            chunks=(6, 10, 16),
            compressors=[zarr.codecs.GzipCodec(), zarr.codecs.Crc32cCodec()],
            **how,
        )
        stored[...] = ramp
        if name.endswith("zip"):
            store.close()
    return Volume(f"s3://bucket/{name}", storage_options=server.storage_options)


@pytest.mark.parametrize("volume", NAMES, indirect=True)
@pytest.mark.parametrize("ahead", sampled([True, False]), ids=["ahead", "read"])
def test_what_is_garbled_on_its_way_is_read_again(server, volume, ramp, ahead):
    """Each of the first answers after opening, in turn: the voxels are right."""
    for count in (1, 2):
        volume.shape  # noqa: B018
        server.fail(Fault("garble", times=count))
        ticket = volume.prefetch(PART) if ahead else None
        found = volume.read(PART)
        if ticket is not None:
            ticket.close()
        np.testing.assert_array_equal(found.array[0], ramp[PART.slices])
        server.fail()
        close_volumes()
    assert len(AHEAD) == 0


@pytest.mark.parametrize("volume", NAMES, indirect=True)
def test_a_header_that_is_garbled_on_its_way_is_read_again(server, volume, ramp):
    """The first answer of all."""
    server.fail(Fault("garble", times=1))

    assert volume.shape == (1, *ramp.shape)
    assert any(line.status in (200, 206) for line in server.requests)


@pytest.mark.parametrize("volume", NAMES, indirect=True)
def test_what_is_damaged_in_the_bucket_is_told(server, volume):
    """After so many looks: the file is what it is."""
    volume.shape  # noqa: B018
    server.forget()
    server.fail(Fault("garble"))

    with pytest.raises(VolumeReadError, match="s3://bucket/"):
        volume.read(PART)
    keys = [(line.key, line.range) for line in server.requests]
    assert max(map(keys.count, keys)) <= 2 * LOOKS


def test_another_version_is_not_asked_for_again():
    """No look brings the one back that was opened."""
    looks = []

    def read():
        looks.append(1)
        raise VolumeChanged("it was written again")

    with pytest.raises(VolumeChanged):
        read_anew(read)
    assert len(looks) == 1


@pytest.fixture
def copies(monkeypatch):
    """Let the first chunk of the next copies of a ``.b2nd`` arrive damaged, as many as are said."""
    left, true = [0], blosc2_remote.copy

    def damaged(stream, raw, size, name):
        true(stream, raw, size, name)
        if left[0]:
            left[0] -= 1
            raw.seek(0)
            header = frame_sizes(raw.read(24), name)[0]
            raw.seek(header + CHUNK_HEAD)  # where its blocks begin
            raw.write(b"\xff" * 64)

    monkeypatch.setattr(blosc2_remote, "copy", damaged)
    return left


@pytest.mark.parametrize("volume", ["a.b2nd"], indirect=True)
def test_a_copy_whose_chunk_was_damaged_on_its_way_is_made_again(volume, ramp, copies):
    """It has no check sum, so this shows when it is decoded."""
    copies[0] = LOOKS - 1

    np.testing.assert_array_equal(volume.read(PART).array[0], ramp[PART.slices])
    assert copies == [0]


@pytest.mark.parametrize("volume", ["a.b2nd"], indirect=True)
def test_a_damaged_copy_is_not_left_for_later_runs(volume, ramp, copies):
    """All looks find damage: it is told, and the next run copies the file again."""
    copies[0] = LOOKS
    with pytest.raises(CorruptVolume):
        volume.read(PART)
    close_volumes()

    assert copies == [0]
    np.testing.assert_array_equal(volume.read(PART).array[0], ramp[PART.slices])
