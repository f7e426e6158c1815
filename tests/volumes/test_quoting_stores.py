"""Stores that quote a password, and stores without an event loop that fail for a while."""

import traceback

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from manifests import write_manifest

from voxpipe.core.errors import StoreUnavailable, VolumeError
from voxpipe.storage import retry
from voxpipe.storage.fsspec_ranges import FsspecRanges
from voxpipe.storage.ranges import ReadRange
from voxpipe.storage.remote import open_remote
from voxpipe.storage.retry import Retry
from voxpipe.volumes import Manifest, read_manifest
from voxpipe.volumes.conversion.destination import RemoteDestination, RemoteLease

PASSWORD = "of-the-store-7261"
OPTIONS = {"password": PASSWORD}
URL = "quoting://folder/a.zarr"


class Quoting(MemoryFileSystem):
    """Refuses everything, and says what it was asked with."""

    protocol = "quoting"
    cachable = False

    def __init__(self, password, **options):
        super().__init__(**options)
        self.password = password

    def _refuse(self, *_, **__):
        raise OSError(f"login with {self.password} failed")

    cat_file = pipe_file = info = exists = find = rm = rm_file = _refuse


@pytest.fixture(autouse=True)
def quoting():
    fsspec.register_implementation("quoting", Quoting, clobber=True)


def refused(act):
    """Return what is shown of an error, the errors behind it included."""
    with pytest.raises(VolumeError) as caught:
        act()
    assert "login with *** failed" in str(caught.value)
    return "".join(traceback.format_exception(caught.value, limit=0))


def hold(lease):
    with lease.hold(timeout=0):
        pass


@pytest.mark.parametrize(
    "act",
    [
        lambda place: place.record(),
        lambda place: place.is_group(),
        lambda place: place.make_way(),
        lambda place: place.finished_shards("key"),
        lambda place: place.note((0, 0, 0)),
        lambda place: place.publish({}, overwrite=False),
        lambda place: place.lock(0).__enter__(),
    ],
    ids=["record", "is_group", "make_way", "finished", "note", "publish", "locked"],
)
def test_a_destination_shows_no_password(act):
    """Whatever a writer does, what the store says is cut."""
    place = RemoteDestination(URL, OPTIONS, 60.0)
    assert PASSWORD not in refused(lambda: act(place))


def test_a_lease_shows_no_password():
    """Alone, as in a destination."""
    lease = RemoteLease(Quoting(PASSWORD), "/lock", "a place", options=OPTIONS)
    assert PASSWORD not in refused(lambda: hold(lease))


@pytest.mark.parametrize(
    "act",
    [
        lambda store: store.get("a"),
        lambda store: store.get_ranges([ReadRange("a", 0, 3)]),
        lambda store: store.facts("a"),
        lambda store: store.size("a"),
        lambda store: list(store.list()),
    ],
    ids=["get", "get_ranges", "facts", "size", "list"],
)
def test_ranges_show_no_password(act):
    """Of a file system without an event loop."""
    store = open_remote(URL, OPTIONS)
    assert isinstance(store, FsspecRanges)
    assert PASSWORD not in refused(lambda: act(store))
    assert PASSWORD not in repr(store)


@pytest.mark.parametrize(
    "act",
    [lambda: read_manifest(URL, OPTIONS), lambda: write_manifest(Manifest(()), URL, OPTIONS)],
    ids=["read", "write"],
)
def test_manifests_show_no_password(act):
    """Read and written by URL."""
    assert PASSWORD not in refused(act)


class Flaky:
    """Fails so many times, then answers."""

    def __init__(self, failures):
        self.failures, self.calls = failures, 0

    def _answer(self, answer):
        self.calls += 1
        if self.calls <= self.failures:
            raise ConnectionResetError(f"by {PASSWORD}")
        return answer

    def cat_file(self, path, start=None, end=None):
        return self._answer(b"0123456789"[start:end])

    def info(self, path):
        return self._answer({"size": 10})

    def find(self, path, detail):
        return self._answer({"store/a": {"size": 10}})

    def invalidate_cache(self, path):
        pass


@pytest.mark.parametrize(
    ("act", "answer"),
    [
        (lambda store: store.get_ranges([ReadRange("a", 2, 5)]), [b"234"]),
        (lambda store: store.size("a"), 10),
        (lambda store: list(store.list()), ["a"]),
    ],
    ids=["ranges", "size", "list"],
)
def test_what_passes_is_tried_again(monkeypatch, act, answer):
    """By the policy that holds for every store."""
    system, pauses = Flaky(2), []
    monkeypatch.setattr(retry, "AT_ONCE", 0)  # with pauses, whatever the store answered before
    policy = Retry(deadline=1e6, first=0.01, most=0.05)
    true = Retry.pause
    monkeypatch.setattr(Retry, "pause", lambda *given: pauses.append(1) or true(*given))
    store = FsspecRanges("flaky://store", {}, system, "store", policy)

    assert act(store) == answer
    assert (system.calls, len(pauses)) == (3, 2)


def test_what_stays_ends_at_the_deadline():
    """In one error that says so, without the password."""
    system = Flaky(10**6)
    policy = Retry(deadline=0.5, first=1e3, most=1e3)
    store = FsspecRanges("flaky://store", OPTIONS, system, "store", policy)

    with pytest.raises(StoreUnavailable, match=r"reading flaky://store/a failed once .* \*\*\*"):
        store.get("a")
    assert system.calls == 1


def test_what_is_not_there_is_not_tried_again():
    """One request, and None."""

    class Empty(Flaky):
        def cat_file(self, path, start=None, end=None):
            self.calls += 1
            raise KeyError(path)

    system = Empty(0)
    assert FsspecRanges("flaky://store", {}, system, "store").get("a") is None
    assert system.calls == 1
