"""Workers share what takes a pass over a whole volume, with each other and with later epochs."""

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.testing.s3 import S3Server

zarr = pytest.importorskip("zarr", minversion="3")
SHAPE = (32, 32, 32)
CASES = 3


@pytest.fixture
def server(tmp_path, monkeypatch):
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
