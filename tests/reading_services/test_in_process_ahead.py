"""Without workers too, the next batch is on its way while one is used."""

import numpy as np
import pytest
import zarr
from s3_server import S3Server

import voxpipe as vp
from voxpipe.storage.read_ahead import AHEAD
from voxpipe.volumes import close_volumes

SHAPE = (16, 16, 16)


@pytest.fixture
def pipe(tmp_path, started_clients, monkeypatch):
    """Return patches of four volumes in a bucket, two in a batch."""
    pytest.importorskip("s3fs")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    (tmp_path / "bucket").mkdir()
    for n in range(4):
        stored = zarr.create_array(
            tmp_path / "bucket" / f"{n}.zarr", shape=SHAPE, chunks=(8, 8, 8), dtype="i2"
        )
        stored[...] = np.arange(4096, dtype="i2").reshape(SHAPE) + n
    with S3Server(tmp_path) as server:
        cases = [{"image": f"s3://bucket/{n}.zarr"} for n in range(4)]
        yield (
            vp.from_cases(cases)
            .open_volume(storage_options=server.storage_options)
            .lazy_patch((12, 12, 12), samples_per_volume=2)
            .batch_patches(2)
        )
        close_volumes()


def test_the_next_batch_is_on_its_way(pipe):
    """While one batch is used the next is asked for; at the end nothing is held."""
    with vp.DataLoader2(pipe, seed=3) as loader:
        held = [len(AHEAD) for _ in loader]

    assert all(held[:-1])
    assert held[-1] == len(AHEAD) == AHEAD.held_bytes == 0


def test_an_epoch_that_is_left_holds_nothing(pipe):
    """What was asked for and is never used is let go."""
    with vp.DataLoader2(pipe, seed=3) as loader:
        coming = iter(loader)
        next(coming)
        assert len(AHEAD) > 0

    assert (len(AHEAD), AHEAD.held_bytes) == (0, 0)
