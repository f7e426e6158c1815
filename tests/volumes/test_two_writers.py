"""Two processes that write one volume to one place: one writes, and a dead one holds nobody up."""

import multiprocessing
import os
import signal
import threading

import fsspec
import numpy as np
import pytest
from nifti_files import numbered, write_nifti

from voxpipe.core.errors import DestinationBusy, VolumeError, VolumeReadError
from voxpipe.volumes import Volume, close_volumes, convert
from voxpipe.volumes.conversion import destination
from voxpipe.volumes.conversion.destination import RemoteLease

zarr = pytest.importorskip("zarr")
SIZES = {"chunk": 2, "shard": 4}
ARRAY = numbered((8, 8, 8))
pytestmark = pytest.mark.usefixtures("started_clients")
# Longest wait for a process to begin, beside others; nobody waits for it to pass.
SECONDS = 120.0


@pytest.fixture(scope="module", autouse=True)
def zarr_is_warm():
    """Its loop stays for the process, and does not count as left behind."""
    zarr.create_array(zarr.storage.MemoryStore(), shape=(1,), dtype="u1")


@pytest.fixture(params=["disk", "bucket"])
def place(request, tmp_path):
    """Return a destination and its storage options: a folder, or a key in a bucket."""
    if request.param == "disk":
        return str(tmp_path / "a.nii.zarr"), None
    server = request.getfixturevalue("server")
    return "s3://bucket/a.nii.zarr", server.storage_options


def write_until_told(connection, source, location, options, lease, stop_after):
    """Convert; after some shards say so, and go on when told."""
    destination.LEASE_SECONDS = lease
    calls = []

    def progress(done, total):
        calls.append(done)
        if len(calls) == stop_after + 1:
            connection.send("writing")
            connection.recv()

    try:
        done = convert(source, location, storage_options=options, progress=progress, **SIZES)
        connection.send((done.new_shards, done.reused_shards))
    except Exception as error:
        connection.send(error)


@pytest.fixture
def first(place, tmp_path):
    """Return a function that starts another process, which has written two shards and waits."""
    source = write_nifti(tmp_path / "source.nii", ARRAY)
    context = multiprocessing.get_context("forkserver")
    started = []

    def start(lease=60.0):
        ours, theirs = context.Pipe()
        args = (theirs, source, *place, lease, 2)
        child = context.Process(target=write_until_told, args=args, daemon=True)
        child.start()
        theirs.close()
        started.append((child, ours))
        assert ours.poll(SECONDS)
        assert ours.recv() == "writing"
        return source, child, ours

    yield start
    for child, ours in started:
        ours.close()
        child.kill()
        child.join()
        child.close()
    close_volumes()


def write(source, place, **options):
    location, storage_options = place
    return convert(source, location, storage_options=storage_options, **SIZES, **options)


def voxels(place):
    location, options = place
    return Volume(location, storage_options=options or {}).numpy()[0]


def test_the_second_is_refused_and_the_first_goes_on(place, first):
    """By name and in time; what the first writes is whole."""
    source, _, ours = first()

    refused = pytest.raises(DestinationBusy, match=r"another process is writing .*a\.nii\.zarr")
    with refused as caught:
        write(source, place, timeout=0)
    assert isinstance(caught.value, TimeoutError)
    assert not isinstance(caught.value, VolumeReadError)

    ours.send("go on")
    assert ours.poll(SECONDS)
    assert ours.recv() == (8, 0)
    np.testing.assert_array_equal(voxels(place), ARRAY)
    assert write(source, place, timeout=0).new_shards == 0


def test_a_killed_writer_holds_nobody_up(place, first, monkeypatch):
    """What it has written is kept, the rest is written, and no lock is left."""
    source, child, _ = first()
    child.kill()
    child.join()
    monkeypatch.setattr(destination, "LEASE_SECONDS", 0.3)

    done = write(source, place, timeout=SECONDS)

    assert (done.new_shards, done.reused_shards) == (6, 2)
    np.testing.assert_array_equal(voxels(place), ARRAY)
    system, path = fsspec.core.url_to_fs(place[0], **(place[1] or {}))
    system.invalidate_cache()
    assert [p for p in system.find(path.rpartition("/")[0], withdirs=True) if ".part" in p] == []


def test_a_writer_that_lives_keeps_its_lease(server, first, place):
    """However long a shard takes: who waits for longer than a lease lasts still waits."""
    if place[1] is None:
        pytest.skip("the kernel's locks do not end")
    lease = 0.4
    first(lease)
    system, path = fsspec.core.url_to_fs(place[0], **place[1])
    other = RemoteLease(system, lock_of(path), "a place", lease)

    with pytest.raises(DestinationBusy, match="a place"), other.hold(timeout=4 * lease):
        pass


@pytest.mark.slow
def test_who_was_stopped_for_too_long_writes_no_more(place, first, monkeypatch):
    """It finds its place taken, and says so; the volume is that of the other."""
    if place[1] is None:
        pytest.skip("the kernel's locks do not end")
    source, child, ours = first()
    os.kill(child.pid, signal.SIGSTOP)
    monkeypatch.setattr(destination, "LEASE_SECONDS", 0.3)
    assert write(source, place, timeout=SECONDS).reused_shards == 2
    os.kill(child.pid, signal.SIGCONT)

    ours.send("go on")

    assert ours.poll(SECONDS)
    assert "took over writing s3://bucket/a.nii.zarr" in str(ours.recv())
    np.testing.assert_array_equal(voxels(place), ARRAY)


def lock_of(path):
    folder, _, last = path.rpartition("/")
    return f"{folder}/.{last}.part.lock"


def test_one_of_many_takes_a_dead_lease_over(tmp_path):
    """All wait for the same lease; at no time do two hold it."""
    system, path = fsspec.filesystem("memory"), f"/leases/{tmp_path.name}"
    system.pipe_file(path, RemoteLease(system, path, "dead")._content())
    holding, most, order = [], [], threading.Lock()

    def take(number):
        with RemoteLease(system, path, "a place", seconds=2.0).hold(timeout=SECONDS):
            with order:
                holding.append(number)
                most.append(len(holding))
            with order:
                holding.remove(number)

    threads = [threading.Thread(target=take, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)

    assert most == [1] * 6
    assert not system.exists(path)


def test_a_store_without_conditions_is_read_again(tmp_path):
    """What another wrote over ours is found before anything is written."""
    system, path = fsspec.filesystem("memory"), f"/leases/{tmp_path.name}"

    class Careless:
        """Takes every object, and another writer is always faster."""

        cat_file = system.cat_file

        def pipe_file(self, path, content, mode="overwrite"):
            system.pipe_file(path, RemoteLease(system, path, "other")._content())

    with (
        pytest.raises(DestinationBusy, match="is writing a place"),
        RemoteLease(Careless(), path, "a place").hold(timeout=0),
    ):
        pass


class Objects:
    """A store of objects, with or without conditional requests; may be told what happens when."""

    def __init__(self, conditional=True, refusal=FileExistsError):
        self.held, self.conditional, self.refusal = {}, conditional, refusal
        self.refused = lambda path: None

    def pipe_file(self, path, content, mode="overwrite"):
        if self.conditional and mode == "create" and path in self.held:
            self.refused(path)
            raise self.refusal(path)
        self.held[path] = content

    def cat_file(self, path):
        if path not in self.held:
            raise FileNotFoundError(path)
        return self.held[path]

    def rm_file(self, path):
        if path not in self.held:
            raise FileNotFoundError(path)
        del self.held[path]


def test_without_conditions_a_lease_that_is_held_stays():
    """Who begins looks first: the lease of a writer that lives is not written over."""
    store = Objects(conditional=False)
    first = RemoteLease(store, "lock", "a place")
    with first.hold(timeout=0):
        before = store.held["lock"]
        with pytest.raises(DestinationBusy), RemoteLease(store, "lock", "a place").hold(timeout=0):
            pass
        assert store.held["lock"] == before
        first.check()
    assert store.held == {}


def test_takers_that_were_killed_hold_nobody_up():
    """A claim that its taker left behind, and one upon it, are taken over like a lease."""
    store, lease = Objects(), 0.1
    dead, killed, another = (RemoteLease(store, "lock", "a place", lease) for _ in range(3))
    store.held["lock"] = dead._content()
    store.held[f"lock.{dead._owner}"] = killed._content()
    store.held[f"lock.{dead._owner}.{killed._owner}"] = another._content()

    with RemoteLease(store, "lock", "a place", lease).hold(timeout=SECONDS):
        assert list(store.held) == ["lock"]
    assert store.held == {}


def test_who_is_refused_is_told_how_long_to_wait():
    """For a killed writer and a killed taker: looks of one call count, so it is a timeout."""
    store = Objects()
    store.held["lock"] = RemoteLease(store, "lock", "a place")._content()
    waiting = RemoteLease(store, "lock", "a place", 0.4)

    with (
        pytest.raises(DestinationBusy, match=r"timeout of more than 1\.2 s"),
        waiting.hold(timeout=0),
    ):
        pass


class Answered(OSError):
    status = 412


@pytest.mark.parametrize("refusal", [FileExistsError, Answered])
def test_an_owner_that_finishes_in_between_is_no_failure(refusal):
    """The lease is gone when it is looked at after the refusal: it is made again."""
    store = Objects(refusal=refusal)
    seen = []

    def finish(path):
        seen.append(path)
        del store.held[path]

    store.refused = finish
    true = store.cat_file
    looks = []

    def late(path):
        """Find nothing once: the owner begins just after."""
        looks.append(path)
        if len(looks) == 1:
            store.held[path] = RemoteLease(store, "lock", "other")._content()
            raise FileNotFoundError(path)
        return true(path)

    store.cat_file = late
    with RemoteLease(store, "lock", "a place", 0.2).hold(timeout=SECONDS):
        assert seen == ["lock"]


def test_a_refusal_for_another_reason_is_told():
    """A store that lets nobody write is not asked until the timeout."""
    store = Objects()

    def refuse(path, content, mode="overwrite"):
        raise PermissionError(path)

    store.pipe_file = refuse
    lease = RemoteLease(store, "lock", "a place")
    with pytest.raises(VolumeError, match="PermissionError"), lease.hold(timeout=SECONDS):
        pass
