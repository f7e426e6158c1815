"""Workers share what takes a pass over a whole volume, with each other and with later epochs."""

import multiprocessing as mp
import sys
from collections import Counter

import numpy as np
import pytest
from manifests import index_cases, write_manifest
from s3_server import S3Server

import voxpipe as vp
from voxpipe.volumes import close_volumes

zarr = pytest.importorskip("zarr")
SHAPE = (32, 32, 32)
CASES = 3


@pytest.fixture
def server(tmp_path, monkeypatch, started_clients):
    """Three cases in a bucket, 64 chunks each that do not compress, and an empty cache."""
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "cache"))
    for number in range(CASES):
        array = np.random.default_rng(number).integers(-999, 999, SHAPE).astype(np.int16)
        place = tmp_path / "served" / "bucket" / f"case{number}" / "ct.zarr"
        zarr.create_array(place, shape=SHAPE, chunks=(8, 8, 8), dtype="i2")[:] = array
    with S3Server(tmp_path / "served") as served:
        yield served


def epochs(server, count, **service):
    """Return how many chunks each epoch of a new loader asks for."""
    cases = [{"image": f"s3://bucket/case{number}/ct.zarr"} for number in range(CASES)]
    pipe = vp.from_cases(cases).open_volume(storage_options=server.storage_options)
    # A patch in one chunk: whatever is asked for beyond these is the pass.
    pipe = pipe.crop((8, 8, 8), (8, 8, 8)).normalize().batch_patches(1)
    loader = vp.DataLoader2(pipe, None, vp.MultiProcessingReadingService(**service))
    found = []
    with loader:
        loader.seed(0)
        for _ in range(count):
            server.forget()
            assert sum(1 for _ in loader) == CASES
            found.append(sum("/c/" in request.key for request in server.requests))
    return found


@pytest.mark.parametrize("workers", [0, 2])
def test_a_bucket_is_read_once_for_its_statistics(server, workers):
    """All chunks in the first epoch; in the next one, and in another run, those of the patches."""
    first, second = epochs(server, 2, num_workers=workers)
    (another,) = epochs(server, 1, num_workers=2)

    assert CASES * 64 <= first <= CASES * 65
    assert second <= CASES
    assert another == CASES


def test_workers_that_need_the_same_volume_read_it_once(server, tmp_path):
    """Each patch of a case may go to another worker: one reads the case, the others wait."""
    cases = [{"image": "s3://bucket/case0/ct.zarr", "case": f"again {n}"} for n in range(4)]
    pipe = vp.from_cases(cases).open_volume(storage_options=server.storage_options)
    pipe = pipe.crop((8, 8, 8), (8, 8, 8)).normalize().batch_patches(1)
    service = vp.MultiProcessingReadingService(4, threads_per_worker=1)
    with vp.DataLoader2(pipe, None, service) as loader:
        assert sum(1 for _ in loader) == 4

    chunks = sum("/c/" in request.key for request in server.requests)
    assert 64 <= chunks <= 64 + 4
    assert len(list((tmp_path / "cache" / "statistics").glob("*.json"))) == 1


def test_what_was_learnt_of_a_bucket_outlives_an_epoch(tmp_path, started_clients):
    """Of more volumes than there may be open files, metadata and indices are asked for once."""
    count = 50
    for number in range(count):
        array = np.random.default_rng(number).integers(-999, 999, SHAPE).astype(np.int16)
        place = tmp_path / "bucket" / f"case{number}.zarr"
        zarr.create_array(place, shape=SHAPE, chunks=(16, 16, 16), shards=SHAPE, dtype="i2")[:] = (
            array
        )
    with S3Server(tmp_path) as server:
        cases = [{"image": f"s3://bucket/case{number}.zarr"} for number in range(count)]
        pipe = vp.from_cases(cases).open_volume(storage_options=server.storage_options)
        pipe = pipe.lazy_patch((8, 8, 8)).batch_patches(5)
        with vp.DataLoader2(pipe, None, vp.MultiProcessingReadingService(1), seed=0) as loader:
            asked = []
            for _ in range(2):
                server.forget()
                assert sum(1 for _ in loader) == count // 5
                asked.append([(r.key.rpartition("/")[2], r.range) for r in server.requests])

    first, second = asked
    assert sum(key == "zarr.json" for key, _ in first) >= count
    assert sum(span.startswith("bytes=-") for _, span in first) == count
    assert all(key == "0" and not span.startswith("bytes=-") for key, span in second)
    assert len(second) <= count


def test_workers_end_with_the_epoch_where_that_is_asked_for(server):
    """By default those that read by URL stay; those of local files do not."""
    url = [{"image": "s3://bucket/case0/ct.zarr"}]
    local = [{"image": np.ones(SHAPE, np.int16)}]
    for cases, stay, count in ((url, None, 1), (url, False, 0), (local, None, 0), (local, True, 1)):
        options = {} if cases is local else {"storage_options": server.storage_options}
        pipe = vp.from_cases(cases).open_volume(**options).batch_patches(1)
        service = vp.MultiProcessingReadingService(1, persistent_workers=stay)
        with vp.DataLoader2(pipe, None, service) as loader:
            assert sum(1 for _ in loader) == 1
            assert len(mp.active_children()) == count


def test_a_manifest_asks_for_less_than_the_headers(server, tmp_path):
    """One listing says that a volume is what it was; its metadata are in the manifest."""
    place = tmp_path / "served" / "bucket"
    for number in range(CASES):
        vp.convert(place / f"case{number}" / "ct.zarr", place / f"case{number}" / "image.zarr")
    volumes = [
        (f"case{n}", "image", vp.Volume(f"s3://bucket/case{n}/image.zarr", **options(server)))
        for n in range(CASES)
    ]
    manifest, bad = index_cases(volumes, statistics=False)
    assert not bad
    write_manifest(manifest, tmp_path / "manifest.json")
    close_volumes()

    asked = {}
    cases = [{"image": f"s3://bucket/case{n}/image.zarr"} for n in range(CASES)]
    for name, source in (
        ("headers", vp.from_cases(cases)),
        ("manifest", vp.from_manifest(tmp_path / "manifest.json", **options(server))),
    ):
        pipe = source.open_volume(**options(server)).lazy_patch((8, 8, 8)).batch_patches(1)
        with vp.DataLoader2(pipe, None, vp.MultiProcessingReadingService(1), seed=0) as loader:
            server.forget()
            assert sum(1 for _ in loader) == CASES
            asked[name] = [r.key.partition("?")[0] for r in server.requests]

    headers, manifest_of = asked["headers"], asked["manifest"]
    # Cases are looked at by the loader too, to agree how they are read: of a manifest one is.
    assert sum(key.endswith("zarr.json") for key in headers) == 2 * 3 * CASES
    assert not any(key.endswith(("zarr.json", "nifti/c/0")) for key in manifest_of)
    assert sum("/c/" in key for key in manifest_of) == sum("/0/c/" in key for key in headers)
    assert sum(key == "bucket" for key in manifest_of) == CASES + 1
    assert len(manifest_of) == sum("/c/" in key for key in manifest_of) + CASES + 1


def with_clients(batch):
    """Return which client of buckets the worker has loaded."""
    return "s3fs" in sys.modules


def test_epochs_from_a_manifest_ask_for_what_epochs_of_headers_ask(server, tmp_path):
    """From the second on of voxels alone; versions are asked for by the client that reads."""
    cases = [{"image": f"s3://bucket/case{n}/ct.zarr"} for n in range(CASES)]
    place = tmp_path / "manifest.json"
    vp.index(vp.from_cases(cases), place, statistics=False, **options(server))
    close_volumes()
    asked = {}
    for name, source in (
        ("headers", vp.from_cases(cases)),
        ("manifest", vp.from_manifest(place, **options(server))),
    ):
        pipe = source.open_volume(**options(server)).lazy_patch((8, 8, 8)).batch_patches(2)
        pipe = pipe.map(with_clients)
        with vp.DataLoader2(pipe, None, vp.MultiProcessingReadingService(1), seed=0) as loader:
            for epoch in range(3):
                server.forget()
                assert set(loader) == {False}
                asked[name, epoch] = Counter(kind_of(r.key) for r in server.requests)

    listings = asked["manifest", 0].pop("listing")
    metadata = asked["headers", 0].pop("metadata")
    assert CASES <= listings < metadata
    for epoch in range(3):
        assert asked["manifest", epoch] == asked["headers", epoch]
        assert set(asked["manifest", epoch]) <= {"chunk"}


def kind_of(key):
    """Return what a request is about."""
    if key.rstrip("/") == "bucket":
        return "listing"
    return "metadata" if key.endswith(".json") else "chunk"


def options(server):
    return {"storage_options": server.storage_options}


@pytest.mark.parametrize("shards", [None, (48, 48, 48)])
@pytest.mark.parametrize("workers", [0, 2])
def test_what_was_written_between_two_epochs_is_what_the_next_one_reads(tmp_path, shards, workers):
    """In place, under the same metadata: no kept chunk and no kept index of the last epoch."""
    # Small chunks beside a large patch, so that some stay in the memory of whoever decoded them.
    (tmp_path / "c0").mkdir()
    how = {"shape": (40,) * 3, "chunks": (16,) * 3, "shards": shards, "dtype": "int16"}
    stored = zarr.create_array(tmp_path / "c0" / "ct.zarr", **how)
    volumes = vp.list_cases(str(tmp_path / "c*/"), image="ct.zarr").open_volume()
    pipe = volumes.lazy_patch(24, samples_per_volume=6).batch_patches(2)
    service = vp.MultiProcessingReadingService(workers, persistent_workers=True)

    with vp.DataLoader2(pipe, None, service, seed=1) as loader:
        for epoch in (1, 2, 3):
            # Of another length when it is compressed, so an index of a shard is another one too.
            values = range(10 * epoch, 11 * epoch + 1)
            stored[:] = np.random.default_rng(epoch).choice(values, stored.shape)

            seen = {number for batch in loader for number in batch["image"].unique().tolist()}

            assert seen == set(values), f"others than those of epoch {epoch}"
