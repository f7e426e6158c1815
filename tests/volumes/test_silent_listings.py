"""Listing a store that never answers is told after one deadline, whoever lists."""

import pytest
from s3_server import Fault

import voxpipe as vp
from voxpipe.core.errors import StoreUnavailable
from voxpipe.datapipes.iter import FSSpecFileLister
from voxpipe.storage import fsspec_ranges
from voxpipe.storage.remote import open_remote
from voxpipe.storage.retry import LEAST_ATTEMPT, Attempts, Retry
from voxpipe.volumes.catalog import find

LISTING = {
    "keys": lambda url, options: list(open_remote(url, options).list()),
    "entries": lambda url, options: open_remote(url, options).entries(),
    "glob": lambda url, options: find.matches_volumes(f"{url}/*/ct.nii", options),
    "folder": lambda url, options: list(find._list(url, options)),
    "cases": lambda url, options: list(
        vp.list_cases(f"{url}/*/", image="ct.nii", storage_options=options)
    ),
    "files": lambda url, options: list(FSSpecFileLister([url], **options)),
}


QUICK = ("keys", "glob")


@pytest.mark.parametrize(
    "how", [*QUICK, *(pytest.param(k, marks=pytest.mark.slow) for k in LISTING if k not in QUICK)]
)
def test_a_silent_store_is_asked_until_the_deadline(server, client, monkeypatch, how):
    """It is of one attempt: no client, and no layer above, begins anew on its own."""
    monkeypatch.setenv("VOXPIPE_REMOTE_DEADLINE", str(LEAST_ATTEMPT))
    server.fail(*[Fault("hang", method=method) for method in ("GET", "HEAD", "LIST")])

    with pytest.raises(StoreUnavailable, match="failed once in"):
        LISTING[how]("s3://bucket", server.storage_options)

    # Of the last, whether it is a file is asked first.
    assert len(server.requests) <= (2 if how == "files" else 1)


def test_a_silent_web_server_is_given_up(server, client, monkeypatch):
    """Its client would wait for five minutes."""
    monkeypatch.setenv("VOXPIPE_REMOTE_DEADLINE", str(LEAST_ATTEMPT))
    server.fail(*[Fault("hang", method=method) for method in ("GET", "HEAD", "LIST")])

    for how in ("keys", "glob"):
        with pytest.raises(StoreUnavailable):
            LISTING[how](f"{server.url}/bucket", {})


def test_a_long_listing_has_no_limit_before_it_fails():
    """Each of its requests has one; what is tried again ends at the deadline."""
    now = [0.0]
    attempts = Attempts(Retry(deadline=9.0, first=0.1), "listing", str, lambda: now[0])
    assert attempts.rest is None
    now[0] = 5.0
    attempts.note_failure(ConnectionResetError())
    assert attempts.rest == 4.0
    now[0] = 8.5
    assert attempts.rest == LEAST_ATTEMPT


def test_the_file_system_of_a_listing_tries_nothing_again(server, client):
    """Nor waits longer than for any read."""
    system, _ = fsspec_ranges.file_system_of("s3://bucket", server.storage_options)
    assert system.retries == 1
