"""Somebody else's idea of S3: both clients read from moto what they read from our own server."""

import urllib.request

import numpy as np
import pytest

from voxpipe.core import Region
from voxpipe.storage.ranges import ReadRange
from voxpipe.storage.remote import open_remote
from voxpipe.volumes import Volume, close_volumes

moto = pytest.importorskip("moto.server")
zarr = pytest.importorskip("zarr")


@pytest.fixture
def elsewhere(started_clients):
    """Return the URL of a server of moto's."""
    server = moto.ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    # What one server has stored, the next one of this process would know.
    reset = urllib.request.Request(f"{url}/moto-api/reset", method="POST")
    urllib.request.urlopen(reset).close()
    put(f"{url}/bucket", b"")
    yield url
    close_volumes()
    server.stop()


def put(url, content):
    """Store an object without any client."""
    request = urllib.request.Request(url, data=content, method="PUT")
    request.add_header("Content-Type", "binary/octet-stream")
    with urllib.request.urlopen(request) as answer:
        assert answer.status == 200


def test_ranges(elsewhere, client):
    """Parts, ends, what is beyond the end, what is not there."""
    put(f"{elsewhere}/bucket/a", b"0123456789")
    store = open_remote("s3://bucket", {"key": "k", "secret": "s", "endpoint_url": elsewhere})
    wanted = [ReadRange("a", 2, 5), ReadRange("a", -3, None), ReadRange("a", 8, 20)]

    found = store.get_ranges([*wanted, ReadRange("a", 30, 40), ReadRange("none")])

    assert [None if each is None else bytes(each) for each in found] == [
        *(b"234", b"789", b"89"),
        *(b"", None),
    ]
    assert list(store.list()) == ["a"]
    assert store.size("a") == 10


def test_zarr(elsewhere, client, tmp_path, ramp):
    """A sharded array."""
    stored = zarr.create_array(
        tmp_path / "a.zarr",
        shape=ramp.shape,
        dtype=ramp.dtype,
        chunks=(4, 5, 8),
        shards=(8, 20, 16),
    )
    stored[...] = ramp
    for file in sorted((tmp_path / "a.zarr").rglob("*")):
        if file.is_file():
            put(f"{elsewhere}/bucket/{file.relative_to(tmp_path)}", file.read_bytes())
    options = {"key": "k", "secret": "s", "endpoint_url": elsewhere}
    region = Region((3, 4, 5), (21, 12, 13))

    found = Volume("s3://bucket/a.zarr", storage_options=options).read(region)

    np.testing.assert_array_equal(found.array[0], ramp[region.slices])
