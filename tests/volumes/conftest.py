"""Buckets for tests: a server that each test begins and ends, and the clients that read it."""

import numpy as np
import pytest
from s3_server import S3Server

from voxpipe.volumes import close_volumes

CLIENTS = ["fsspec", "obstore"]
BUCKET = "bucket"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the tests of a backend as slow on all files of a class but the first."""
    from contract_sample import slow_in_contracts

    for item in slow_in_contracts(items):
        item.add_marker(pytest.mark.slow)


@pytest.fixture
def server(tmp_path, started_clients, monkeypatch):
    """Serve an empty bucket, and close what was read from it."""
    root = tmp_path / "s3"
    (root / BUCKET).mkdir(parents=True)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    # Public: some tests have credentials of their own, to see that these appear nowhere.
    with S3Server(root, is_public=True) as running:
        running.bucket = root / BUCKET
        yield running
        close_volumes()


@pytest.fixture(params=CLIENTS)
def client(request, monkeypatch):
    """Read with each client in turn."""
    monkeypatch.setenv("VOXPIPE_REMOTE", request.param)
    return request.param


@pytest.fixture
def ramp():
    """No two voxels equal."""
    return np.arange(24 * 20 * 16, dtype=np.int16).reshape(24, 20, 16)
