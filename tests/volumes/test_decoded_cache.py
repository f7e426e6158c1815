"""The cache of decoded volumes: many processes, little room, sudden deaths."""

import fcntl
import multiprocessing
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from voxpipe.core.errors import BadSetting, CacheBusy, CacheTooSmall, CacheUnused, VolumeError
from voxpipe.storage import volume_cache
from voxpipe.storage.disk_cache import cache_budget, cache_directory
from voxpipe.storage.volume_cache import VolumeCache


@pytest.fixture
def cache(tmp_path):
    return VolumeCache(tmp_path / "cache", budget=100, timeout=20.0)


def read(cache, key, content, name="a.nii.gz"):
    """Return what the cache holds, writing ``content`` if it has to."""
    with cache.open(key, len(content), lambda file: file.write(content), name) as file:
        return file.read()


def entries(cache):
    return sorted(path.name for path in cache.directory.iterdir() if path.is_file())


def used_at(cache, key, when):
    os.utime(cache.directory / f"{key}.nii", ns=(when, when))


def test_written_once(cache):
    """The second reader gets what the first one wrote, and writes nothing."""
    assert read(cache, "aa", b"first") == b"first"
    assert read(cache, "aa", b"other") == b"first"
    assert entries(cache) == ["aa.nii"]


def test_only_the_user_may_look_into_it(cache):
    """The directory holds scans of people."""
    read(cache, "aa", b"first")

    assert cache.directory.stat().st_mode & 0o077 == 0


def test_the_least_recently_used_entry_goes(cache):
    """Room is made by dropping what was not used for longest; reading counts as use."""
    for n, key in enumerate(("aa", "bb", "cc")):
        read(cache, key, bytes(30))
        used_at(cache, key, n)
    read(cache, "aa", bytes(30))

    read(cache, "dd", bytes(30))

    assert entries(cache) == ["aa.nii", "cc.nii", "dd.nii"]


def test_an_entry_in_use_may_be_evicted(cache):
    """Whoever has it open keeps its bytes."""
    with cache.open("aa", 60, lambda file: file.write(b"a" * 60), "a") as file:
        read(cache, "bb", bytes(60))
        assert entries(cache) == ["bb.nii"]
        assert file.read() == b"a" * 60


def test_more_than_the_budget_is_refused(cache):
    """The message names both numbers, and the way out."""
    with pytest.raises(CacheTooSmall, match=r"101 bytes.*100") as caught:
        read(cache, "aa", bytes(101), "big.nii.gz")

    assert "big.nii.gz" in str(caught.value)
    assert "VOXPIPE_CACHE_BYTES" in str(caught.value)


def test_a_full_disk_is_told_once(cache, monkeypatch):
    """Before anything is written; volumes are decoded into memory then, and nothing is kept."""
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)

    with pytest.warns(CacheUnused, match=r"the 50 bytes of a\.nii\.gz.*allows 100") as told:
        found = read(cache, "aa", b"a" * 50)
    assert str(cache.directory) in str(told[0].message)
    assert (found, read(cache, "bb", b"b" * 50)) == (b"a" * 50, b"b" * 50)
    assert entries(cache) == []


def test_more_than_memory_takes_is_refused(cache, monkeypatch):
    """Where the disk is full; the message names both."""
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10}))
    monkeypatch.setattr(volume_cache, "usable_memory", lambda: 100)

    with (
        pytest.warns(CacheUnused),
        pytest.raises(CacheTooSmall, match=r"50 bytes.*No space left"),
    ):
        read(cache, "aa", bytes(50))


def test_a_directory_that_cannot_be_made(tmp_path):
    """A file in the way is an error that names the directory."""
    (tmp_path / "file").write_bytes(b"")

    with pytest.raises(VolumeError, match="cannot be made"):
        read(VolumeCache(tmp_path / "file" / "cache", 100), "aa", b"a")


def test_a_writer_that_fails_leaves_nothing(cache):
    """What was half written is gone, and the next one may try."""

    def fail(file):
        file.write(b"half")
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        cache.open("aa", 8, fail, "a")

    assert entries(cache) == []
    assert read(cache, "aa", b"whole") == b"whole"


def test_threads_write_once(cache):
    """Eight threads that need one volume decode it once."""
    written = []

    def write(file):
        written.append(1)
        file.write(b"12345678")

    def ask(_):
        with cache.open("aa", 8, write, "a") as file:
            return file.read()

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(8)))

    assert found == [b"12345678"] * 8
    assert written == [1]


def test_waiting_has_an_end(tmp_path):
    """A lock that somebody keeps is an error after the timeout, which names the volume."""
    cache = VolumeCache(tmp_path, 100, timeout=0.05)
    (tmp_path / "locks").mkdir()

    with open(tmp_path / "locks" / "entry-aa", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(CacheBusy, match=r"decode slow\.nii\.gz"):
            read(cache, "aa", b"a", "slow.nii.gz")
    assert read(cache, "aa", b"a") == b"a"


def write_and_die(cache, key):
    """Die like a process that the kernel kills in the middle of writing."""

    def write(file):
        file.write(b"half")
        file.flush()
        os.kill(os.getpid(), signal.SIGKILL)

    cache.open(key, 80, write, "a")


@pytest.mark.parametrize("key", ["aa", "bb"])
def test_a_killed_writer_blocks_nobody(cache, key):
    """Its lock is gone with it; its partial file is removed by who needs the entry or the room."""
    child = multiprocessing.get_context("forkserver").Process(
        target=write_and_die, args=(cache, "aa")
    )
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    child.close()
    assert [name.rpartition(".")[2] for name in entries(cache)] == ["part"]

    assert read(cache, key, bytes(90)) == bytes(90)

    assert entries(cache) == [f"{key}.nii"]


def test_room_that_others_need_is_not_taken(tmp_path):
    """While another volume is being decoded, its room counts; then it may be evicted."""
    cache = VolumeCache(tmp_path, 100, timeout=0.05)
    patient = VolumeCache(tmp_path, 100, timeout=20.0)

    def write(file):
        with pytest.raises(CacheBusy, match="room for"):
            read(cache, "bb", bytes(60))
        file.write(bytes(60))

    patient.open("aa", 60, write, "a").close()

    assert read(cache, "bb", bytes(60)) == bytes(60)
    assert entries(cache) == ["bb.nii"]


def test_where_the_cache_is():
    """The variable has the word, then XDG's, then the home directory."""
    assert str(cache_directory({"VOXPIPE_CACHE": "/fast", "XDG_CACHE_HOME": "/x"})) == "/fast"
    assert str(cache_directory({"XDG_CACHE_HOME": "/x"})) == "/x/voxpipe"
    assert cache_directory({}).parts[-2:] == (".cache", "voxpipe")


def test_how_large_the_cache_may_be():
    """32 GiB unless the variable says otherwise; what is no number is refused."""
    assert cache_budget({}) == 32 * 1024**3
    assert cache_budget({"VOXPIPE_CACHE_BYTES": "5"}) == 5
    assert cache_budget({"VOXPIPE_CACHE_BYTES": "5 GiB"}) == 5 * 1024**3
    with pytest.raises(BadSetting, match="'5 lots'"):
        cache_budget({"VOXPIPE_CACHE_BYTES": "5 lots"})
