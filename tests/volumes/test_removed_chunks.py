"""A zarr that is removed or edited while it is read: chunks that are gone are no fill."""

import shutil
from collections import Counter

import numpy as np
import pytest
import zarr
from numcodecs import Delta
from s3_server import Fault

import voxpipe as vp
from voxpipe.core import Region
from voxpipe.core.errors import VolumeChanged
from voxpipe.storage import remote_ranges
from voxpipe.storage.file_reader import HINTS
from voxpipe.volumes import Volume
from voxpipe.volumes.formats import zarr_backend

SHAPE = (24, 24, 24)
CORNER, OTHER = Region((0, 0, 0), (4, 4, 4)), Region((8, 8, 8), (12, 12, 12))


def write(path, *, version=3, shards=None, half=False, **other):
    """Write ones, on request into the first half only."""
    array = zarr.create_array(
        path, shape=SHAPE, chunks=(4, 4, 4), shards=shards, dtype="i2", zarr_format=version, **other
    )
    array[: 12 if half else 24] = 1


WRITTEN = {
    "v3": {},
    "v2": {"version": 2},
    "shards": {"shards": (8, 8, 8)},
    # Which zarr-python reads.
    "filters": {"version": 2, "filters": [Delta("<i2")]},
}


def opened(path, server=None):
    volume = Volume(path if server is None else f"s3://bucket/{path.name}", **options(server))
    assert (volume.read(CORNER).array == 1).all()
    return volume


def options(server):
    return {} if server is None else {"storage_options": server.storage_options}


@pytest.fixture(params=["local", "fsspec", "obstore"])
def place(request, server, monkeypatch):
    """Return a folder and, where it is read as a bucket, its server."""
    if request.param == "local":
        return server.bucket, None
    monkeypatch.setenv("VOXPIPE_REMOTE", request.param)
    return server.bucket, server


@pytest.mark.parametrize("how", WRITTEN)
def test_chunks_of_a_removed_zarr_are_no_fill(place, how):
    """Those that nobody has read before are missing: the metadata are gone as well."""
    folder, server = place
    write(folder / "a.zarr", **WRITTEN[how])
    volume = opened(folder / "a.zarr", server)
    shutil.rmtree(folder / "a.zarr")

    for _ in range(2):
        with pytest.raises(VolumeChanged, match=r"a\.zarr.* was removed since") as told:
            volume.read(OTHER)
        assert "Make a new Volume" in str(told.value)


def test_a_level_that_is_removed_is_told_though_its_group_stays(place):
    """The document of the array tells, not that of the image."""
    folder, server = place
    group = zarr.create_group(folder / "a.zarr")
    axes = [{"name": name, "type": "space"} for name in "zyx"]
    scale = [{"type": "scale", "scale": [1.0, 1.0, 1.0]}]
    levels = [{"path": "0", "coordinateTransformations": scale}]
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": levels}]}
    write(folder / "a.zarr" / "0")
    volume = opened(folder / "a.zarr", server)
    shutil.rmtree(folder / "a.zarr" / "0")

    with pytest.raises(VolumeChanged, match=r"a\.zarr.* was removed since"):
        volume.read(OTHER)


def test_chunks_that_were_written_under_other_metadata_are_no_fill(place):
    """They lie elsewhere: what is missing says nothing of the version that was opened."""
    folder, server = place
    write(folder / "a.zarr")
    volume = opened(folder / "a.zarr", server)
    shutil.rmtree(folder / "a.zarr")
    write(folder / "a.zarr", shards=(24, 24, 24), overwrite=True)

    with pytest.raises(VolumeChanged, match=r"a\.zarr was written again since"):
        volume.read(OTHER)

    again = Volume(volume.name, **options(server))
    assert (again.read(OTHER).array == 1).all()


def values_of(batches, seen):
    for batch in batches:
        seen |= set(np.unique(batch["image"].numpy()).tolist())


def test_a_removed_zarr_ends_the_epoch_with_its_case(server, client):
    """Of a bucket too, though nothing is read twice; no batch holds fill."""
    write(server.bucket / "a.zarr")
    pipe = vp.from_cases([{"case": "first", "image": "s3://bucket/a.zarr"}])
    pipe = pipe.open_volume(storage_options=server.storage_options)
    pipe = pipe.lazy_patch(4, samples_per_volume=80).shuffle().batch_patches(2)
    batches = iter(pipe)
    assert (next(batches)["image"] == 1).all()
    shutil.rmtree(server.bucket / "a.zarr")

    seen = set()
    with pytest.raises(VolumeChanged, match="was removed since") as told:
        values_of(batches, seen)
    assert told.value.case == "first"
    assert seen <= {1}


def test_chunks_that_are_not_stored_cost_one_request_in_a_while(server, client, monkeypatch):
    """Fill is no fault: the metadata are looked at again once for all that is missing by then."""
    now = [100.0]
    monkeypatch.setattr(zarr_backend, "_clock", lambda: now[0])
    write(server.bucket / "a.zarr", half=True)
    volume = opened(server.bucket / "a.zarr", server)

    def documents():
        return len([each for each in server.requests if each.key.endswith("zarr.json")])

    asked = documents()

    for start in (12, 16, 20):
        assert (volume.read(Region((start, 0, 0), (start + 4, 8, 8))).array == 0).all()
    assert documents() == asked + 1

    assert (volume.read(Region((12, 0, 0), (24, 8, 8))).array == 0).all()
    now[0] += zarr_backend.LOOK_PAUSE
    assert (volume.read(Region((12, 0, 0), (24, 8, 8))).array == 0).all()
    assert documents() == asked + 2


def test_one_missing_answer_for_the_metadata_is_no_removal(server, client):
    """It is asked for again before that is said."""
    write(server.bucket / "a.zarr", half=True)
    volume = opened(server.bucket / "a.zarr", server)
    server.fail(Fault("missing", times=1, key=r"zarr\.json"))

    assert (volume.read(Region((12, 0, 0), (16, 4, 4))).array == 0).all()


@pytest.mark.parametrize("shards", [None, (8, 8, 8)])
def test_one_missing_answer_for_a_chunk_is_no_fill(server, client, shards):
    """Nobody has read it before: where others are there, it is asked for again."""
    write(server.bucket / "a.zarr", shards=shards)
    volume = Volume("s3://bucket/a.zarr", **options(server))
    server.fail(Fault("missing", times=2, key="/c/"))

    assert (volume.read(Region((0, 0, 0), (8, 8, 8))).array == 1).all()
    server.fail(Fault("missing", times=2, key="/c/"))
    ticket = volume.prefetch(OTHER)
    assert (volume.read(OTHER).array == 1).all()
    if ticket is not None:
        ticket.close()


def test_a_volume_of_which_little_is_stored_is_not_asked_for_twice(server, client):
    """Some of what is missing is: at first, and where others have paid for it."""
    write(server.bucket / "a.zarr", half=True)
    volume = Volume("s3://bucket/a.zarr", **options(server))
    assert (volume.read(Region((12, 0, 0), (24, 12, 24))).array == 0).all()
    assert (volume.read(Region((0, 0, 0), (12, 12, 24))).array == 1).all()
    assert (volume.read(Region((12, 12, 0), (24, 24, 24))).array == 0).all()

    asked = Counter(each.key for each in server.requests if "/c/" in each.key)
    assert len(asked) == 3 * 3 * 3 * 6
    more = sum(asked.values()) - len(asked)
    assert more == 2 * remote_ranges.DOUBTS_AT_ONCE


def written_again(random, array):
    """Write random boxes of a zarr array one after another, as corrections of labels do."""
    for value in range(1, 13):
        start = random.integers(0, array.shape)
        box = tuple(slice(a, a + n) for a, n in zip(start, random.integers(1, 12, 3), strict=True))
        array[box] = value % 4
        yield array[:]


@pytest.mark.parametrize("is_warm", [False, True], ids=["", "cached"])
@pytest.mark.parametrize("codec", [None, zarr.codecs.ZstdCodec(), zarr.codecs.GzipCodec()], ids=str)
def test_shards_that_are_edited_in_place_are_read_as_they_are(
    tmp_path, monkeypatch, codec, is_warm
):
    """Also by a volume that was open before: missing shards and chunks, and moved chunks."""
    monkeypatch.setattr(HINTS, "is_warm", is_warm)
    sizes = {"chunks": (4, 4, 4), "shards": (8, 8, 8)}
    options = {"dtype": "u1", "compressors": codec, "fill_value": 0}
    array = zarr.create_array(tmp_path / "a.zarr", shape=(20, 16, 16), **sizes, **options)
    array[5, 5, 5] = 9
    before = vp.Volume(tmp_path / "a.zarr")

    for voxels in written_again(np.random.default_rng(0), array):
        for volume in (before, vp.Volume(tmp_path / "a.zarr")):
            np.testing.assert_array_equal(volume.numpy()[0], voxels)
            part = volume.read(vp.Region((2, 1, 3), (19, 12, 16))).values()[0]
            np.testing.assert_array_equal(part, voxels[2:19, 1:12, 3:16])
