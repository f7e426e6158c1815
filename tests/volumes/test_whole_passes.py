"""What takes a pass over a whole volume is worked out once per content, and kept."""

import threading
from collections import Counter
from contextlib import closing, suppress

import numpy as np
import pytest
from s3_server import S3Server

import voxpipe as vp
from voxpipe.core import IO_COUNTERS
from voxpipe.core.errors import CorruptVolume, VolumeError
from voxpipe.core.lru_cache import LRUCache
from voxpipe.spatial.lazy import patch_facts
from voxpipe.storage.content import content_key_now
from voxpipe.storage.disk_cache import get_or_make
from voxpipe.volumes import (
    AxisMap,
    Volume,
    close_volumes,
    register_backend,
    unregister_backend,
    volume_histogram,
    volume_statistics,
)
from voxpipe.volumes.catalog import whole_pass
from voxpipe.volumes.chunks.chunk_cache import CHUNKS

zarr = pytest.importorskip("zarr")
SHAPE = (8, 9, 10)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch, started_clients):
    """An empty cache, and nothing remembered."""
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "cache"))
    another_run(monkeypatch)
    yield tmp_path / "cache"
    close_volumes()


def another_run(monkeypatch):
    """Forget what a process remembers; the cache on the disk stays."""
    close_volumes()
    for cache in (whole_pass.STATISTICS, whole_pass.HISTOGRAMS, whole_pass.BOXES):
        monkeypatch.setattr(cache, "memory", LRUCache())
    monkeypatch.setattr(patch_facts, "_MEMORY", LRUCache())


def voxels(seed=0):
    return np.random.default_rng(seed).integers(1, 99, SHAPE).astype(np.int16)


def write(place, array):
    created = zarr.create_array(
        place, shape=SHAPE, chunks=(4, 4, 4), dtype=array.dtype, overwrite=True
    )
    created[:] = array
    return created


class Folder:
    def __init__(self, folder):
        self.place = folder / "a.zarr"

    def volume(self, array):
        if array is not None:
            write(self.place, array)
        return Volume(self.place)


class Stored(Folder):
    """A zarr array in a store on the disk, given as an object."""

    def volume(self, array):
        super().volume(array)
        return Volume(zarr.open_array(self.place, mode="r"))


class Wrapped(Folder):
    """A store of zarr's around another one."""

    def volume(self, array):
        super().volume(array)
        return Volume(zarr.storage.WrapperStore(zarr.storage.LocalStore(self.place)))


class Filed(Folder):
    """A store that reaches the folder through fsspec."""

    def volume(self, array):
        super().volume(array)
        return Volume(zarr.storage.FsspecStore.from_url(f"file://{self.place}"))


class InMemory:
    """Another store of the same content in each run."""

    def __init__(self, folder):
        self.array = None

    def volume(self, array):
        self.array = self.array if array is None else array
        store = zarr.storage.MemoryStore()
        write(store, self.array)
        return Volume(store)


class Array(InMemory):
    def volume(self, array):
        self.array = self.array if array is None else array
        return Volume(np.asfortranarray(self.array))


class Own(InMemory):
    """A backend that says what its content is."""

    def volume(self, array):
        self.array = self.array if array is None else array
        held = self.array[None]

        class Backend:
            shape = held.shape
            affine = np.eye(4)
            dtype = held.dtype
            content_key = f"study 7, version {held.sum()}"

            def __getitem__(self, item):
                return held[item]

        register_backend("own", lambda request: str(request.source) == "own:7", lambda _: Backend())
        return Volume("own:7")


@pytest.fixture(params=[Folder, Stored, Wrapped, Filed, InMemory, Array, Own])
def source(request, tmp_path):
    yield request.param(tmp_path)
    if request.param is Own:
        unregister_backend("own")


def numbers(volume):
    found = volume_statistics(volume)
    return found.mean, volume_histogram(volume).maximum


def read_by(work):
    """Return what ``work`` returns, and the bytes of voxels that it read."""
    before = IO_COUNTERS.snapshot().bytes_read
    return work(), IO_COUNTERS.snapshot().bytes_read - before


def test_a_second_run_reads_no_voxel(source, monkeypatch):
    """Whatever the volume is made of, if its content can be told."""
    first, read = read_by(lambda: numbers(source.volume(voxels())))
    assert read >= voxels().nbytes
    another_run(monkeypatch)

    again, read = read_by(lambda: numbers(source.volume(None)))

    assert again == first
    assert read <= 8  # the type of the voxels is asked of one of them


def test_other_content_has_other_numbers(source, monkeypatch):
    """In a process that has closed its volumes; metadata and sizes are the same."""
    first = numbers(source.volume(voxels()))
    close_volumes()

    assert numbers(source.volume(voxels() + 1)) == (first[0] + 1, first[1] + 1)


@pytest.mark.parametrize(
    "volume",
    [
        Volume,
        lambda place: Volume([place, place]),
        lambda place: Volume(place).with_axis_map(AxisMap.missing("I", [2])),
        lambda place: Volume(zarr.open_array(place, mode="r")),
    ],
    ids=["one", "stacked", "mapped", "object"],
)
def test_chunks_written_anew_have_other_numbers(tmp_path, volume):
    """In one process, under the same metadata, and nobody closes anything."""
    stored = write(tmp_path / "a.zarr", voxels())
    before = numbers(volume(tmp_path / "a.zarr"))

    stored[:] = voxels() + 1

    after = numbers(volume(tmp_path / "a.zarr"))
    assert after != before
    close_volumes()
    assert after == numbers(volume(tmp_path / "a.zarr"))


def test_shards_and_kept_chunks_written_anew(tmp_path):
    """Their indices and the decoded chunks that an epoch keeps are of the old ones."""
    place = tmp_path / "a.zarr"
    stored = zarr.create_array(
        place, shape=(8, 8, 8), chunks=(4, 4, 4), shards=(8, 8, 8), dtype=int
    )
    with closing(CHUNKS.lend(10**6)):
        for top in (2, 2**40):
            stored[:] = np.random.default_rng(top).integers(0, top, (8, 8, 8))
            assert volume_statistics(Volume(place)).maximum == stored[:].max()
            assert np.array_equal(Volume(place).numpy()[0], stored[:])


def test_what_changes_while_it_is_read_is_not_kept(cache, tmp_path, monkeypatch):
    """The numbers may be of a mixture; they are named after what was there before."""
    write(tmp_path / "a.zarr", voxels())
    compute = whole_pass._compute

    def disturbed(volume):
        found = compute(volume)
        write(tmp_path / "a.zarr", voxels() + 1)
        return found

    monkeypatch.setattr(whole_pass, "_compute", disturbed)
    volume_statistics(Volume(tmp_path / "a.zarr"))

    assert not list((cache / "statistics").glob("*.json"))


def test_a_level_of_a_store_has_a_name_of_its_own(tmp_path):
    """Of a pyramid each level is other content."""
    group = zarr.create_group(tmp_path / "a.zarr")
    for level, size in enumerate((8, 4)):
        group.create_array(str(level), shape=(size,) * 3, dtype="u1", fill_value=level + 1)
    scales = [
        {
            "path": str(level),
            "coordinateTransformations": [{"type": "scale", "scale": [2.0**level] * 3}],
        }
        for level in range(2)
    ]
    axes = [{"name": name, "type": "space"} for name in "zyx"]
    group.attrs["ome"] = {"version": "0.5", "multiscales": [{"axes": axes, "datasets": scales}]}
    opened = zarr.open_group(tmp_path / "a.zarr", mode="r")

    assert [volume_statistics(Volume(opened, level=n)).mean for n in (0, 1)] == [1, 2]
    assert len({Volume(opened, level=n).content_key for n in (0, 1)}) == 2


def test_a_bucket_is_listed_and_not_read_again(tmp_path, started_clients, monkeypatch):
    """In the next run, its metadata and one listing are asked for; an ETag that differs counts."""
    write(tmp_path / "bucket" / "a.zarr", voxels())
    with S3Server(tmp_path) as server:

        def asked():
            another_run(monkeypatch)
            server.forget()
            url = "s3://bucket/a.zarr"
            mean = volume_statistics(Volume(url, storage_options=server.storage_options)).mean
            return mean, sorted(r.key for r in server.requests if "/c/" in r.key)

        first, chunks = asked()
        assert len(chunks) == 18
        assert asked() == (first, [])
        assert len(server.requests) == 2

        write(tmp_path / "bucket" / "a.zarr", voxels() + 1)
        assert asked() == (first + 1, chunks)
        close_volumes()


@pytest.mark.parametrize(
    "other",
    [
        {"shape": (4, 9, 10)},
        {"shape": (16, 9, 10)},
        {"dtype": "u2"},
        {"chunks": (8, 9, 10)},
        {"fill_value": 7},
    ],
    ids=str,
)
def test_a_bucket_that_is_written_with_another_header(tmp_path, monkeypatch, other):
    """What was read of it by the old one, fill in the place of chunks, is not kept as the new."""
    place = tmp_path / "bucket" / "a.zarr"
    before = {"shape": SHAPE, "chunks": (4, 9, 10), "dtype": "i2", "fill_value": 0}
    zarr.create_array(place, **before)[:] = 5
    with S3Server(tmp_path) as server:
        url, options = "s3://bucket/a.zarr", {"storage_options": server.storage_options}
        old = Volume(url, **options)
        assert old.shape == (1, *SHAPE)
        zarr.create_array(place, **before | other, overwrite=True)[:4] = 6
        with suppress(VolumeError):  # what it is then is a mixture
            volume_statistics(old)
        volume_key = old.content_key
        another_run(monkeypatch)

        new = Volume(url, **options)

        assert new.content_key != volume_key
        held = zarr.open_array(place, mode="r")[:]
        assert (volume_statistics(new).mean, volume_statistics(new).maximum) == (
            held.mean(),
            held.max(),
        )
        close_volumes()


def test_a_bucket_that_shrinks_is_opened_anew(tmp_path):
    """Once a listing has told that it is another one, a new volume has the header of now."""
    place = tmp_path / "bucket" / "a.zarr"
    write(place, voxels())
    with S3Server(tmp_path) as server:
        url, options = "s3://bucket/a.zarr", {"storage_options": server.storage_options}
        old = Volume(url, **options)
        first = old.content_key
        zarr.create_array(place, shape=(4, 4, 4), chunks=(4, 4, 4), dtype="i2", overwrite=True)[
            :
        ] = 3

        assert content_key_now(old) != first
        assert Volume(url, **options).shape == (1, 4, 4, 4)
        assert (Volume(url, **options).numpy() == 3).all()
        with pytest.raises(CorruptVolume, match="has changed since its header was read"):
            old.numpy()
        close_volumes()


@pytest.mark.parametrize("options", [{}, {"above": 50.0}], ids=["recorded", "counted"])
def test_an_epoch_from_a_manifest_asks_for_its_patches_alone(tmp_path, monkeypatch, options):
    """Numbers of whole volumes are in the manifest, or on the disk once one pass has made them."""
    for n in range(2):
        write(tmp_path / "bucket" / f"p{n}" / "ct.zarr", voxels(n))
    with S3Server(tmp_path) as server:
        store = {"storage_options": server.storage_options}
        vp.index("s3://bucket", str(tmp_path / "manifest.json"), **store)

        def epochs(*, normalized):
            another_run(monkeypatch)
            pipe = vp.from_manifest(str(tmp_path / "manifest.json"), **store).open_volume()
            pipe = pipe.lazy_patch((4, 4, 4), samples_per_volume=4)
            pipe = pipe.normalize(**options) if normalized else pipe
            with vp.DataLoader2(pipe.batch_patches(4), seed=3) as loader:
                for _ in range(2):
                    server.forget()
                    means = [float(batch["ct"].double().mean()) for batch in loader]
                    yield means, Counter((r.method, r.key) for r in server.requests)

        plain = [asked for _, asked in epochs(normalized=False)]
        first = [means for means, _ in epochs(normalized=True)]
        (means, begun), (_, then) = epochs(normalized=True)

        assert means == first[0]
        # The listings that compare what is there with the manifest, and the chunks of patches.
        assert 0 < sum("/c/" in key for _, key in plain[0]) < 36
        assert plain[0]["GET", "bucket"] == 2
        # By another listing of each, its numbers are found on the disk.
        assert begun - plain[0] == ({("GET", "bucket"): 2} if options else {})
        # To name them afterwards costs no request.
        assert then == plain[1]
        close_volumes()


def test_one_makes_what_others_wait_for(tmp_path):
    """Each process, here each thread, opens the lock anew; the work is done once."""
    file = tmp_path / "kept" / "a"
    made, ready, go_on = [], threading.Event(), threading.Event()

    def make():
        made.append(1)
        ready.set()
        assert go_on.wait(30)
        return "found"

    answers = []
    threads = [
        threading.Thread(
            target=lambda: answers.append(get_or_make(file, bytes.decode, make, str.encode))
        )
        for _ in range(3)
    ]
    threads[0].start()
    assert ready.wait(30)
    for thread in threads[1:]:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join(30)

    assert answers == ["found"] * 3
    assert len(made) == 1
    assert sorted(path.name for path in file.parent.iterdir()) == ["a"]


def test_a_lock_that_a_dead_process_left_is_no_obstacle(tmp_path):
    """The kernel's lock goes with its holder; the file may stay."""
    (tmp_path / "a.lock").write_bytes(b"")

    assert get_or_make(tmp_path / "a", bytes.decode, lambda: "found", str.encode) == "found"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_whoever_waits_too_long_makes_its_own(tmp_path):
    """Another one may hang; then the numbers are worked out twice, which is right all the same."""

    def twice():
        return get_or_make(
            tmp_path / "a",
            lambda content: None,
            lambda: "found here",
            str.encode,
            patience=0.0,
        )

    answers = get_or_make(tmp_path / "a", lambda content: None, twice, str.encode)

    assert answers == "found here"
