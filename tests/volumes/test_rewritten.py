"""A file in a bucket that is written again while it is read: told, and never mixed."""

import os
import pickle
import shutil
import time
from dataclasses import replace

import nibabel
import numpy as np
import pytest
import s3_http
import zarr
from s3_server import Fault

import voxpipe as vp
from voxpipe.core import Region
from voxpipe.core.errors import VolumeChanged
from voxpipe.storage.ranges import ReadRange
from voxpipe.storage.remote import RemoteFile, open_remote
from voxpipe.volumes import Volume, close_volumes

PART = Region((0, 0, 0), (12, 10, 9))


def written(path, suffix, value):
    array = np.full((20, 20, 20), value, np.int16)
    if suffix == ".nii":
        nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), path)
    elif suffix == ".npy":
        np.save(path, array)
    elif suffix == ".tif":
        pytest.importorskip("tifffile").imwrite(path, array, rowsperstrip=5, compression="zlib")
    elif suffix == ".h5":
        with pytest.importorskip("h5py").File(path, "w") as file:
            file.create_dataset("a", data=array, chunks=(5, 5, 5), compression="gzip")
    else:
        with zarr.storage.ZipStore(path, mode="w") as store:
            made = zarr.create_array(store, shape=array.shape, chunks=(5, 20, 20), dtype="i2")
            made[...] = array
    # As many bytes as before, at another time: that is another ETag.
    os.utime(path, ns=(value * 10**9, value * 10**9))


@pytest.mark.parametrize("suffix", [".nii", ".npy", ".tif", ".h5", ".zarr.zip"])
def test_a_file_that_is_written_again_is_told(server, client, suffix):
    """A read after that raises, and says what to do; a new volume reads the new version."""
    path, url = server.bucket / f"a{suffix}", f"s3://bucket/a{suffix}"
    written(path, suffix, 1)
    volume = Volume(url, storage_options=server.storage_options)
    assert (volume.read(Region((0, 0, 0), (1, 1, 1))).array == 1).all()
    written(path, suffix, 2)

    with pytest.raises(VolumeChanged, match="was written again since") as caught:
        volume.read(Region((8, 8, 8), (20, 20, 20)))

    assert url in str(caught.value)
    again = Volume(url, storage_options=server.storage_options)
    assert (again.read(PART).array == 2).all()


def without(monkeypatch, *names):
    """Let the server leave headers out."""
    head = s3_http.Answer.head

    def shorter(answer):
        kept = {name: value for name, value in answer.headers.items() if name not in names}
        return head(replace(answer, headers=kept))

    monkeypatch.setattr(s3_http.Answer, "head", shorter)


@pytest.mark.parametrize("suffix", [".nii", ".tif"])
def test_a_web_server_without_etags_tells_by_time(server, client, monkeypatch, suffix):
    """A file of as many bytes, written later, is another version; one that is not goes on."""
    without(monkeypatch, "ETag")
    path, url = server.bucket / f"a{suffix}", f"{server.url}/bucket/a{suffix}"
    written(path, suffix, 1)
    volume = Volume(url)
    assert (volume.read(Region((0, 0, 0), (1, 1, 1))).array == 1).all()
    assert (volume.read(Region((5, 5, 5), (7, 7, 7))).array == 1).all()
    written(path, suffix, 2)

    with pytest.raises(VolumeChanged, match="was written again since"):
        volume.read(Region((8, 8, 8), (20, 20, 20)))

    assert (Volume(url).read(PART).array == 2).all()


def test_parts_of_an_object_without_etags_are_of_one_time(server, client, monkeypatch):
    """What an index says holds for no other version, nor where only times tell it."""
    without(monkeypatch, "ETag")
    file = server.bucket / "a"
    file.write_bytes(b"abcdef")
    os.utime(file, (1000, 1000))
    store = open_remote(f"{server.url}/bucket", {})
    assert [*map(bytes, store.get_ranges([ReadRange("a", 0, 2)]))] == [b"ab"]
    file.write_bytes(b"uvwxyz")
    os.utime(file, (2000, 2000))

    with pytest.raises(VolumeChanged):
        store.get_ranges([ReadRange("a", 2, 4)])

    store.forget_versions()
    assert [*map(bytes, store.get_ranges([ReadRange("a", 2, 4)]))] == [b"wx"]
    assert store.replaced_at > 0


def test_a_web_server_that_tells_no_version_has_none(server, client, monkeypatch):
    """Nothing is kept beyond this process under a name that another version would have too."""
    without(monkeypatch, "ETag", "Last-Modified")
    written(server.bucket / "a.nii", ".nii", 1)
    file = RemoteFile(f"{server.url}/bucket/a.nii", {}, "a.nii")
    assert file.content_key == ""


def test_processes_that_open_two_versions_are_told_apart(server, client):
    """One that opens the file later than the first, for the same epoch, raises after its patch."""
    written(server.bucket / "a.nii", ".nii", 1)
    volume = Volume("s3://bucket/a.nii", storage_options=server.storage_options)
    assert (volume.read(PART).array == 1).all()
    volume.refuse_change()
    travels = pickle.dumps(volume)
    written(server.bucket / "a.nii", ".nii", 2)
    close_volumes()  # as in a process that has not opened it yet
    elsewhere = pickle.loads(travels)
    elsewhere.read(PART)

    with pytest.raises(VolumeChanged, match="since it was opened for this epoch"):
        elsewhere.refuse_change()

    anew = pickle.loads(pickle.dumps(elsewhere.opened_anew("a pass")))
    assert (anew.read(PART).array == 2).all()
    anew.refuse_change()


def test_what_was_asked_for_ahead_is_told_by_the_read(server, client):
    """The version is that of the header for what is fetched early too."""
    written(server.bucket / "a.nii", ".nii", 1)
    volume = Volume("s3://bucket/a.nii", storage_options=server.storage_options)
    volume.shape  # noqa: B018
    written(server.bucket / "a.nii", ".nii", 2)

    ticket = volume.prefetch(PART)

    with pytest.raises(VolumeChanged, match="was written again since"):
        volume.read(PART)
    ticket.close()


SHAPE = (24, 24, 24)
LATER = 3600
"""Seconds: what is written while an epoch goes on is newer than its begin by more than that, and by
more than a clock can be ahead (``MOST_AHEAD``), however long the epoch takes."""


def zarr_written(path, value, shards=None, *, later=0, corner=None):
    """Write an array, each object in one step, as if so much later."""
    made = path.parent.parent / "made.zarr"
    array = zarr.create_array(
        made, shape=SHAPE, chunks=(4, 4, 4), shards=shards, dtype="i2", compressors=None
    )
    array[...] = value
    if corner is not None:
        array[:4, :4, :4] = corner
    when = time.time() + later
    for file in sorted(made.rglob("*")):
        if file.is_file():
            os.utime(file, (when, when))
            place = path / file.relative_to(made)
            place.parent.mkdir(parents=True, exist_ok=True)
            if file.name != "zarr.json" or not later:
                os.replace(file, place)
    shutil.rmtree(made)


def epoch(batches, seen):
    """Note the values of each case."""
    for batch in batches:
        for image, meta in zip(batch["image"], batch["meta"], strict=True):
            seen.setdefault(meta["case"], set()).update(np.unique(image.numpy()).tolist())


@pytest.mark.parametrize("shards", [None, (12, 12, 12)])
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_no_epoch_mixes_two_versions_of_remote_chunks(server, client, shards, workers):
    """It ends with the case that changed, as answers say; the next one is of the new version."""
    paths = [server.bucket / f"case{n}.zarr" for n in range(2)]
    for path in paths:
        zarr_written(path, 1, shards)
    cases = [{"case": p.stem, "image": f"s3://bucket/{p.name}"} for p in paths]
    pipe = vp.from_cases(cases).open_volume(storage_options=server.storage_options)
    pipe = pipe.lazy_patch(4, samples_per_volume=40).shuffle().batch_patches(2)
    service = vp.MultiProcessingReadingService(workers, "forkserver" if workers else None)
    seen, anew = {}, {}
    with vp.DataLoader2(pipe, None, service, seed=7) as loader:
        batches = iter(loader)
        epoch([next(batches)], seen)
        for path in paths:
            zarr_written(path, 2, shards, later=LATER)

        with pytest.raises(VolumeChanged, match="was written again") as told:
            epoch(batches, seen)

        assert told.value.case in seen
        assert all(values == {1} for values in seen.values())
        for path in paths:
            for file in path.rglob("*"):
                os.utime(file)
        close_volumes()
        epoch(loader, anew)
    assert anew == {p.stem: {2} for p in paths}


def test_a_patch_is_of_one_version_of_a_shard(server, client):
    """What an index says holds for that version: the rest is not read by it, but all anew."""
    path = server.bucket / "a.zarr"
    zarr_written(path, 1, SHAPE)
    volume = Volume("s3://bucket/a.zarr", storage_options=server.storage_options)
    volume = volume.opened_anew("a pass")
    assert (volume.read(Region((0, 0, 0), (4, 4, 4))).array == 1).all()
    volume.refuse_change()
    # As large, and the parts at other places.
    zarr_written(path, 2, SHAPE, later=LATER, corner=3)

    assert (volume.read(Region((8, 8, 8), (24, 24, 24))).array == 2).all()
    with pytest.raises(VolumeChanged, match=r"a\.zarr was written again"):
        volume.refuse_change()

    again = volume.opened_anew("another pass")
    assert (again.read(Region((0, 0, 0), (4, 4, 4))).array == 3).all()


def test_an_object_that_is_older_than_before_is_another_one(server, client):
    """A copy that keeps its time of writing: noticed where an object is read twice."""
    (server.bucket / "a").write_bytes(b"abc")
    store = open_remote("s3://bucket", server.storage_options)
    store.get("a")
    assert store.replaced_at == 0 < store.newest
    store.get("a")
    assert store.replaced_at == 0
    (server.bucket / "a").write_bytes(b"xyz")
    os.utime(server.bucket / "a", (1000, 1000))

    assert store.get("a") == b"xyz"
    assert store.replaced_at > 0


def test_an_etag_that_lies_once_is_no_other_version(server, client):
    """A proxy may name any: time of writing and size tell."""
    path = server.bucket / "a.zarr"
    zarr_written(path, 1, (12, 12, 12))
    volume = Volume("s3://bucket/a.zarr", storage_options=server.storage_options)
    volume = volume.opened_anew("a pass")
    volume.shape  # noqa: B018
    server.fail(Fault("etag", times=1, key="/c/"))

    assert (volume.read(Region.of_shape(SHAPE)).array == 1).all()
    volume.refuse_change()


def test_looking_at_versions_asks_for_nothing(server, client):
    """An epoch over what does not change takes as many requests as objects: none is asked twice."""
    path = server.bucket / "a.zarr"
    zarr_written(path, 1)
    pipe = vp.from_cases([{"image": "s3://bucket/a.zarr"}])
    pipe = pipe.open_volume(storage_options=server.storage_options).lazy_patch(24).batch_patches(1)
    epoch(pipe, {})

    chunks = [line.key for line in server.requests if "/c/" in line.key]
    assert len(chunks) == len(set(chunks)) == 6**3
    assert len([line for line in server.requests if "zarr.json" in line.key]) == 1


def clock_at(ours, monkeypatch):
    monkeypatch.setattr(time, "time", lambda: ours)
    monkeypatch.setattr(time, "time_ns", lambda: int(ours * 1e9))


def opened_at(path, server, monkeypatch, *, ahead=0.0):
    """Return a volume of a store whose clock is so many seconds ahead, opened for a pass."""
    clock_at(time.time() - ahead, monkeypatch)
    volume = Volume(f"s3://bucket/{path.name}", storage_options=server.storage_options)
    volume = volume.opened_anew("a pass")
    assert (volume.read(Region((0, 0, 0), (4, 4, 4))).array == 1).all()
    return volume


REST = Region((8, 8, 8), (24, 24, 24))


@pytest.mark.parametrize("shards", [None, (12, 12, 12)])
def test_a_store_whose_clock_is_ahead_writes_nothing_in_our_future(
    server, client, monkeypatch, shards
):
    """What it wrote a moment before the epoch is not new: nobody reads what is still to come."""
    path = server.bucket / "a.zarr"
    zarr_written(path, 1, shards)
    volume = opened_at(path, server, monkeypatch, ahead=20)

    assert (volume.read(REST).array == 1).all()
    volume.refuse_change()


def test_a_store_whose_clock_is_ahead_is_still_noticed_to_write(server, client, monkeypatch):
    """By its own clock: later than it was when the epoch began."""
    path = server.bucket / "a.zarr"
    zarr_written(path, 1)
    volume = opened_at(path, server, monkeypatch, ahead=20)
    zarr_written(path, 2, later=20 + 5)
    clock_at(time.time() + 6, monkeypatch)

    assert (volume.read(REST).array == 2).all()
    with pytest.raises(VolumeChanged, match=r"a\.zarr was written again"):
        volume.refuse_change()


def test_the_clock_of_a_store_stays_known(server, client, monkeypatch):
    """Chunks that are read much later than they were written, too, are none that changed."""
    path = server.bucket / "a.zarr"
    zarr_written(path, 1)
    volume = opened_at(path, server, monkeypatch, ahead=20)
    clock_at(time.time() + 100, monkeypatch)

    assert (volume.read(REST).array == 1).all()
    volume.refuse_change()
