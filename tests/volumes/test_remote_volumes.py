"""Volumes in a bucket: the voxels of the local file, in as few requests as the format allows."""

import nibabel
import numpy as np
import pytest
from s3_server import Fault

from voxpipe.core import Region
from voxpipe.core.errors import StoreUnavailable
from voxpipe.storage.read_ahead import AHEAD
from voxpipe.volumes import Volume, close_volumes

zarr = pytest.importorskip("zarr")
WHOLE = Region.of_shape((24, 20, 16))
# Two shards along the first axis, four chunks each along it.
LAYOUT = {"chunks": (4, 20, 16), "shards": (16, 20, 16)}
SHAPE = (32, 20, 16)


@pytest.fixture
def sharded(server, client):
    """A sharded array whose chunks hold their place, opened, and its reference.

    Shards of 20 kB are too large to come with their index.
    """
    array = np.arange(np.prod(SHAPE), dtype=np.int32).reshape(SHAPE)
    stored = zarr.create_array(
        server.bucket / "a.zarr", shape=SHAPE, dtype=array.dtype, compressors=None, **LAYOUT
    )
    stored[...] = array
    volume = Volume("s3://bucket/a.zarr", storage_options=server.storage_options)
    assert volume.shape == (1, *SHAPE)
    return volume, array


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz"])
def test_nifti(server, client, ramp, suffix):
    """A NIfTI file gives the same voxels, whole and in parts, packed or not."""
    nibabel.save(nibabel.Nifti1Image(ramp, np.eye(4)), server.bucket / f"a{suffix}")
    volume = Volume(f"s3://bucket/a{suffix}", storage_options=server.storage_options)
    region = Region((3, 4, 5), (11, 12, 13))

    np.testing.assert_array_equal(volume.read(region).array[0], ramp[region.slices])
    np.testing.assert_array_equal(volume.read(WHOLE).array[0], ramp)


def test_a_nifti_region_is_a_byte_range(server, client, ramp):
    """Opening is one HEAD and one GET; a region in one place is one GET of a part."""
    nibabel.save(nibabel.Nifti1Image(ramp, np.eye(4)), server.bucket / "a.nii")
    volume = Volume("s3://bucket/a.nii", storage_options=server.storage_options)
    volume.shape  # noqa: B018
    assert sorted(line.method for line in server.requests) == ["GET", "HEAD"]
    server.forget()

    volume.read(Region((0, 0, 4), (24, 20, 6)))

    (line,) = server.requests
    assert (line.method, line.sent) == ("GET", 2 * 24 * 20 * 2)


def test_a_packed_nifti_is_fetched_once(server, client, ramp):
    """Later reads, and other volumes of the same file, come from the local cache."""
    nibabel.save(nibabel.Nifti1Image(ramp, np.eye(4)), server.bucket / "a.nii.gz")
    Volume("s3://bucket/a.nii.gz", storage_options=server.storage_options).read(WHOLE)
    close_volumes()
    server.forget()

    again = Volume("s3://bucket/a.nii.gz", storage_options=server.storage_options)

    np.testing.assert_array_equal(again.read(WHOLE).array[0], ramp)
    assert sum(line.sent for line in server.requests if line.range != "bytes=0-65535") < 65536


def test_a_warm_patch_is_one_request_per_shard(server, sharded):
    """The index of a shard is read once; after that a patch is one GET per shard, no HEAD."""
    volume, array = sharded
    volume.read(Region((0, 0, 0), (1, 1, 1)))
    volume.read(Region((31, 0, 0), (32, 1, 1)))
    close_cache()
    server.forget()

    found = volume.read(Region((6, 2, 2), (27, 9, 9)))

    np.testing.assert_array_equal(found.array[0], array[6:27, 2:9, 2:9])
    assert [line.method for line in server.requests] == ["GET", "GET"]


def test_what_was_fetched_ahead_is_not_fetched_again(server, sharded):
    """A read after its prefetch sends nothing; neighbours share the shard, asked for whole."""
    volume, array = sharded
    tickets = [volume.prefetch(Region((n, 0, 0), (n + 8, 9, 9))) for n in (0, 4)]
    first = volume.read(Region((0, 0, 0), (8, 9, 9)))
    close_cache()
    second = volume.read(Region((4, 0, 0), (12, 9, 9)))
    for ticket in tickets:
        ticket.close()

    np.testing.assert_array_equal(first.array[0], array[:8, :9, :9])
    np.testing.assert_array_equal(second.array[0], array[4:12, :9, :9])
    ranges = [line.range for line in server.requests if "/c/" in line.key]
    data = [text for text in ranges if not text.startswith("bytes=-")]
    assert len(data) == 1
    assert (len(AHEAD), AHEAD.held_bytes) == (0, 16 * 20 * 16 * 4)
    close_volumes()
    assert AHEAD.held_bytes == 0


def test_what_goes_wrong_ahead_is_told_by_the_read(server, sharded, monkeypatch):
    """Fetching ahead never raises; the read that needed it does."""
    # Long enough for headers on a busy machine.
    monkeypatch.setenv("VOXPIPE_REMOTE_DEADLINE", "1")
    close_volumes()
    volume = Volume("s3://bucket/a.zarr", storage_options=server.storage_options)
    region = Region((0, 0, 0), (4, 4, 4))
    volume.shape  # noqa: B018
    server.fail(Fault("slow_down", key="/c/"))

    ticket = volume.prefetch(region)

    with pytest.raises(StoreUnavailable, match=r"s3://bucket/a\.zarr/c/0/0/0"):
        volume.read(region)
    ticket.close()
    assert (len(AHEAD), AHEAD.held_bytes) == (0, 0)


def test_what_nobody_reads_is_dropped(server, sharded):
    """Closing a ticket lets go of what is under way; what then is read is right."""
    volume, array = sharded
    server.latency = 0.2
    volume.prefetch(Region((0, 0, 0), (16, 9, 9))).close()
    server.latency = 0.0

    assert (len(AHEAD), AHEAD.held_bytes) == (0, 0)
    found = volume.read(Region((0, 0, 0), (2, 2, 2)))
    np.testing.assert_array_equal(found.array[0], array[:2, :2, :2])


def test_what_is_ahead_has_a_bound(server, sharded, monkeypatch):
    """Beyond the bound nothing is sent for until there is room; a read does not wait for that."""
    volume, array = sharded
    monkeypatch.setattr(AHEAD, "most_bytes", 4 * 20 * 16 * 4)
    volume.read(Region((0, 0, 0), (1, 1, 1)))
    one = volume.prefetch(Region((4, 0, 0), (5, 1, 1)))
    volume.read(Region((4, 0, 0), (5, 1, 1)))
    two = volume.prefetch(Region((8, 0, 0), (16, 1, 1)))
    three = volume.prefetch(Region((8, 0, 0), (12, 1, 1)))
    server.forget()
    held = AHEAD.held_bytes

    found = volume.read(Region((8, 0, 0), (16, 1, 1)))

    np.testing.assert_array_equal(found.array[0], array[8:16, :1, :1])
    assert len(server.requests) == 1
    for ticket in (one, two, three):
        ticket.close()
    assert held > 0
    assert (len(AHEAD), AHEAD.held_bytes) == (0, 0)


def test_what_waits_for_room_begins_when_there_is_some(server, sharded, monkeypatch):
    """The ticket that is closed makes room for the next."""
    volume, array = sharded
    monkeypatch.setattr(AHEAD, "most_bytes", 4 * 20 * 16 * 4)
    volume.read(Region((0, 0, 0), (1, 1, 1)))
    one = volume.prefetch(Region((4, 0, 0), (5, 1, 1)))
    two = volume.prefetch(Region((8, 0, 0), (16, 1, 1)))

    one.close()

    close_cache()
    found = volume.read(Region((8, 0, 0), (16, 1, 1)))
    two.close()
    np.testing.assert_array_equal(found.array[0], array[8:16, :1, :1])
    data = [line.range for line in server.requests if "/c/" in line.key]
    assert len(data) == len(set(data))


def test_no_credentials_in_what_a_volume_says(server, client, ramp):
    """Neither its repr nor its name nor its token show the key."""
    nibabel.save(nibabel.Nifti1Image(ramp, np.eye(4)), server.bucket / "a.nii")
    options = {**server.storage_options, "key": "AKIAVERYSECRET", "secret": "secret-secret"}
    volume = Volume("s3://bucket/a.nii", storage_options=options)
    told = f"{volume!r} {volume.name} {volume.token} {volume.header!r} {volume.content_key}"

    assert "AKIAVERYSECRET" not in told
    assert "secret-secret" not in told


def close_cache():
    """Forget decoded chunks, but not the open volumes."""
    from voxpipe.volumes.chunks.chunk_cache import CHUNKS

    CHUNKS.clear()
