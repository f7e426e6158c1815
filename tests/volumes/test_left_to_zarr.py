"""Arrays that are left to zarr-python: their bytes come through the same checks as all others."""

import os
import shutil
import time

import numcodecs
import numpy as np
import pytest
import zarr
from s3_server import Fault
from zarr_arrays import wrapped_codecs as codecs

from voxpipe.core import Region
from voxpipe.core.errors import BadHeader, CorruptVolume, StoreUnavailable, VolumeChanged
from voxpipe.volumes import Volume, close_volumes
from voxpipe.volumes.formats.zarr_array import ZarrArray

# zarr-python warns of codecs that not all others know.
pytestmark = pytest.mark.filterwarnings("ignore:Numcodecs codecs:UserWarning")
PART = Region((0, 0, 0), (8, 8, 8))
VOXELS = np.arange(16**3, dtype=np.int16).reshape(16, 16, 16)
FILE = "c/0/0/0"


def written(path, voxels=VOXELS, **how):
    """Write an array with a filter of numbers, which voxpipe does not know."""
    how = {"compressors": None, "filters": [codecs.Delta(dtype="i2")], **how}
    stored = zarr.create_array(path, shape=(16, 16, 16), chunks=(8, 8, 8), dtype="i2", **how)
    stored[...] = voxels
    return path


def in_bucket(server, **how):
    written(server.bucket / "a.zarr", **how)
    volume = Volume("s3://bucket/a.zarr", storage_options=server.storage_options)
    assert not isinstance(volume._backend()._array, ZarrArray)
    return volume


@pytest.mark.parametrize("kind", ["shift", "short", "truncate", "error", "slow_down"])
def test_a_wrong_answer_is_asked_for_again(server, client, kind):
    """Of a part of a shard: its index, or a chunk."""
    volume = in_bucket(server, shards=(16, 16, 16))
    for _ in range(3):
        server.fail(Fault(kind, times=1, key="c/0/0/0"))
        np.testing.assert_array_equal(volume.read(PART).values()[0], VOXELS[:8, :8, :8])


def test_what_does_not_decode_is_read_anew(server, client):
    """The way here may have damaged it."""
    volume = in_bucket(server, compressors=zarr.codecs.GzipCodec())
    server.fail(Fault("garble", times=1, key="c/0/0/0"))

    np.testing.assert_array_equal(volume.read(PART).values()[0], VOXELS[:8, :8, :8])


def test_silence_has_an_end(server, client, monkeypatch):
    """After the deadline."""
    monkeypatch.setenv("VOXPIPE_REMOTE_DEADLINE", "0.5")
    volume = in_bucket(server)
    server.fail(Fault("hang", key="c/0/0/0"))

    with pytest.raises(StoreUnavailable):
        volume.read(PART)


def test_an_overwritten_part_is_read_of_one_version(server, client):
    """A chunk of a shard whose index was another one: all of the patch is read again."""
    volume = in_bucket(server, shards=(16, 16, 16))
    assert (volume.read(PART).array == VOXELS[:8, :8, :8]).all()
    volume.refuse_change()
    shutil.rmtree(server.bucket / "a.zarr")
    written(server.bucket / "a.zarr", VOXELS + 1, shards=(16, 16, 16))
    os.utime(server.bucket / "a.zarr" / FILE, (time.time() + 9, time.time() + 9))

    assert (volume.read(PART).array == VOXELS[:8, :8, :8] + 1).all()
    with pytest.raises(VolumeChanged):
        volume.refuse_change()


def test_chunks_that_are_overwritten_in_mid_epoch_are_told(tmp_path):
    """By their time of writing, as those that voxpipe reads itself."""
    written(tmp_path / "a.zarr")
    volume = Volume(tmp_path / "a.zarr").opened_anew("a pass")
    volume.read(PART)
    volume.refuse_change()
    later = time.time_ns()
    (tmp_path / "a.zarr" / FILE).write_bytes(bytes(8**3 * 2))
    os.utime(tmp_path / "a.zarr" / FILE, ns=(later, later))
    volume.read(PART)

    with pytest.raises(VolumeChanged, match=r"a\.zarr"):
        volume.refuse_change()


@pytest.mark.parametrize("follow", ["same_folder", "anywhere"])
def test_a_pipe_in_the_place_of_a_chunk(tmp_path, follow):
    """Nobody would ever write into it, wherever links may lead."""
    written(tmp_path / "a.zarr")
    (tmp_path / "a.zarr" / FILE).unlink()
    os.mkfifo(tmp_path / "a.zarr" / FILE)

    with pytest.raises(BadHeader, match="no regular file"):
        Volume(tmp_path / "a.zarr", follow=follow).read(PART)


def test_a_chunk_is_not_stored_in_more_than_it_can_need(tmp_path):
    """A file of gigabytes in its place is not taken in."""
    written(tmp_path / "a.zarr")
    with open(tmp_path / "a.zarr" / FILE, "r+b") as file:
        file.truncate(2**40)

    with pytest.raises(CorruptVolume, match="1099511627776 bytes"):
        Volume(tmp_path / "a.zarr").read(PART)


@pytest.mark.filterwarnings("ignore:Consolidated metadata:UserWarning")
def test_a_group_is_bounded_by_each_of_its_arrays(tmp_path):
    """Whether the metadata of all were consolidated or not."""
    group = zarr.create_group(tmp_path / "a.zarr")
    written(group.store_path / "0")
    zarr.consolidate_metadata(tmp_path / "a.zarr")
    volume = Volume(tmp_path / "a.zarr")
    np.testing.assert_array_equal(volume.numpy()[0], VOXELS)
    with open(tmp_path / "a.zarr" / "0" / FILE, "r+b") as file:
        file.truncate(2**40)
    close_volumes()

    with pytest.raises(CorruptVolume, match="1099511627776 bytes"):
        Volume(tmp_path / "a.zarr").read(PART)


@pytest.mark.parametrize("how", [{}, {"shards": (16, 16, 16)}])
def test_an_archive_behind_a_url(server, client, tmp_path, how):
    """Ranges of it are read, as of all others."""
    with zarr.storage.ZipStore(server.bucket / "a.zarr.zip", mode="w") as store:
        written(store, **how)
    volume = Volume("s3://bucket/a.zarr.zip", storage_options=server.storage_options)

    np.testing.assert_array_equal(volume.numpy()[0], VOXELS)


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("kind", ["lzma", "gzip", "bz2", "zstd", "blosc"])
def test_a_chunk_does_not_decode_to_more_than_it_can_need(tmp_path, monkeypatch, version, kind):
    """A few kilobytes stand for twenty megabytes, of which no more is made than is wanted."""
    codec = numcodecs.get_codec({"id": kind})
    if version == 2:
        written(
            tmp_path / "a.zarr", zarr_format=2, filters=[numcodecs.Delta("i2")], compressors=codec
        )
    else:
        named = {"lzma": "LZMA", "gzip": "GZip", "bz2": "BZ2", "zstd": "Zstd", "blosc": "Blosc"}
        written(tmp_path / "a.zarr", compressors=[getattr(codecs, named[kind])()])
    np.testing.assert_array_equal(Volume(tmp_path / "a.zarr").numpy()[0], VOXELS)
    close_volumes()
    bomb = codec.encode(np.zeros(20 * 1024**2, np.uint8))
    (tmp_path / "a.zarr" / (FILE if version == 3 else "0.0.0")).write_bytes(bomb)

    with pytest.raises(CorruptVolume, match="more than the 1056768 bytes"):
        Volume(tmp_path / "a.zarr").read(PART)


def test_stored_bytes_are_counted(tmp_path):
    """Not those that they decode to."""
    written(tmp_path / "a.zarr", np.zeros_like(VOXELS) + 1, compressors=zarr.codecs.GzipCodec())
    size = (tmp_path / "a.zarr" / FILE).stat().st_size
    assert size < 8**3

    assert Volume(tmp_path / "a.zarr").fetch(PART) == size
