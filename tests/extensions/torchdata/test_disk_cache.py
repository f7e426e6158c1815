"""The disk cache: each file made once, whole, by one process, whatever happens to it."""

import errno
import functools
import io
import json
import multiprocessing
import os
import pickle
import signal
import tarfile
from pathlib import Path

import pytest
from leftovers import open_files
from torch.utils.data import DataLoader
from torch.utils.data.datapipes.iter import IterableWrapper

import voxpipe as vp
from voxpipe.core.errors import (
    CacheBusy,
    GraphError,
    HashMismatch,
    SampleError,
    UnendedCache,
    VoxpipeError,
)
from voxpipe.extensions.torchdata.on_disk_cache import claim, owner_of
from voxpipe.extensions.torchdata.streams import StreamWrapper

FORK = multiprocessing.get_context("fork")
MD5 = {"a": "0cc175b9c0f1b6a831c399e269772661"}


def path_in(folder, name):
    return str(folder / f"{name}.bin")


def made(folder, name):
    """Note who makes what, and make it."""
    with open(folder / "made.log", "a", encoding="utf-8") as log:
        log.write(f"{os.getpid()} {name}\n")
    return name, str(name).encode()


def log_of(folder):
    """Return what was made, in order."""
    log = folder / "made.log"
    return [line.split()[1] for line in log.read_text().splitlines()] if log.exists() else []


def chain(folder, names, make=made, **options):
    path = functools.partial(path_in, folder)
    begun = IterableWrapper(names).on_disk_cache(path, **options)
    return begun.map(functools.partial(make, folder)).end_caching(same_filepath_fn=True)


def left_over(folder):
    """Return what is in nobody's way, but of no use either."""
    return [p.name for p in folder.rglob("*") if p.name.endswith((".part", ".promise"))]


def test_each_file_is_made_once(tmp_path):
    """In a second pass, in another chain and in another run alike."""
    pipe = chain(tmp_path, ["a", "b", "c"])
    expected = [path_in(tmp_path, name) for name in "abc"]

    assert list(pipe) == expected
    assert list(pipe) == expected
    assert list(chain(tmp_path, ["c", "a", "a"])) == [expected[2], expected[0], expected[0]]
    assert log_of(tmp_path) == ["a", "b", "c"]
    assert [Path(path).read_text(encoding="utf-8") for path in expected] == ["a", "b", "c"]
    assert left_over(tmp_path) == []


def test_the_order_does_not_depend_on_what_is_there(tmp_path):
    """Torchdata yields new files first."""
    list(chain(tmp_path, ["b", "d"]))

    assert list(chain(tmp_path, "abcd")) == [path_in(tmp_path, name) for name in "abcd"]


@pytest.mark.slow
def test_more_than_a_thousand_new_files(tmp_path):
    """Torchdata remembers 1000, and then raises BufferError."""
    names = [str(n) for n in range(1100)]

    assert list(chain(tmp_path, names)) == [path_in(tmp_path, name) for name in names]
    assert len(list(tmp_path.glob("*.bin"))) == 1100


def as_tar(folder, name):
    """An item that becomes several files, in a folder of its own."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as tar:
        for number in range(int(name)):
            info = tarfile.TarInfo(f"{number}.txt")
            info.size = 1
            tar.addfile(info, io.BytesIO(str(number).encode()))
    made(folder, name)
    return str(folder / f"{name}.tar"), io.BytesIO(file.getvalue())


def unpacked(folder, names):
    begun = IterableWrapper(names).on_disk_cache(functools.partial(path_in, folder))
    return begun.map(functools.partial(as_tar, folder)).load_from_tar().end_caching()


def test_an_item_may_become_several_files_or_none(tmp_path):
    """A list says which; none at all is an answer, too."""
    expected = [str(tmp_path / f"{n}.tar" / f"{k}.txt") for n in (3, 0, 1) for k in range(n)]

    for _ in range(2):
        assert list(unpacked(tmp_path, ["3", "0", "1"])) == expected
    assert log_of(tmp_path) == ["3", "0", "1"]
    assert left_over(tmp_path) == []


def test_an_item_of_which_a_file_is_gone_is_made_again(tmp_path):
    """A list is worth as much as its files."""
    paths = list(unpacked(tmp_path, ["2", "1"]))
    os.unlink(paths[1])

    assert list(unpacked(tmp_path, ["2", "1"])) == paths
    assert Path(paths[1]).read_text(encoding="utf-8") == "1"
    assert log_of(tmp_path) == ["2", "1", "2"]


def test_a_list_that_is_damaged_counts_as_none(tmp_path):
    """Somebody may have edited it."""
    list(unpacked(tmp_path, ["2"]))
    for damaged in ("{", "[]", '{"files": 3}', json.dumps({"files": ["/nowhere"]})):
        (tmp_path / "2.bin.files.json").write_text(damaged)
        assert len(list(unpacked(tmp_path, ["2"]))) == 2
    assert len(log_of(tmp_path)) == 5


def failing(folder, name):
    """Fail in the middle of the second item."""
    if name == "b":
        return name, iter([b"half", 1 / (len(log_of(folder)) - 1)])
    return made(folder, name)


def test_a_failure_leaves_nothing_behind(tmp_path):
    """Torchdata leaves a promise, for which the next pass waits 300 s."""
    with pytest.raises(ZeroDivisionError):
        list(chain(tmp_path, "abc", failing))

    assert left_over(tmp_path) == []
    assert sorted(p.name for p in tmp_path.glob("*.bin")) == ["a.bin"]
    assert list(chain(tmp_path, "abc")) == [path_in(tmp_path, name) for name in "abc"]


def interrupted(folder, name):
    def pieces():
        yield b"half"
        raise KeyboardInterrupt

    return name, pieces()


def test_an_interruption_leaves_nothing_behind(tmp_path):
    """Ctrl-C is no Exception."""
    with pytest.raises(KeyboardInterrupt):
        list(chain(tmp_path, "a", interrupted))

    assert list(tmp_path.iterdir()) == []


class Cut(io.RawIOBase):
    """A stream that breaks after its first bytes, and tells when it is closed."""

    closings = 0

    def readable(self):
        return True

    def read(self, size=-1):
        self.broken = getattr(self, "broken", 0) + 1
        if self.broken > 1:
            raise ConnectionResetError
        return b"half"

    def close(self):
        type(self).closings += not self.closed
        super().close()


def cut(folder, name):
    return name, StreamWrapper(Cut())


def test_half_a_stream_is_no_file(tmp_path):
    """It is written beside its place; the stream is closed."""
    before = Cut.closings
    with pytest.raises(ConnectionResetError):
        list(chain(tmp_path, "a", cut))

    assert list(tmp_path.iterdir()) == []
    assert Cut.closings == before + 1


def test_hashes(tmp_path):
    """What is made must have its hash, and what is there is made again if it has another."""
    hashes = {path_in(tmp_path, name): digest for name, digest in MD5.items()}
    pipe = chain(tmp_path, "a", hash_dict=hashes, hash_type="md5")

    assert list(pipe) == [path_in(tmp_path, "a")]
    (tmp_path / "a.bin").write_text("changed")
    assert list(pipe) == [path_in(tmp_path, "a")]
    assert (tmp_path / "a.bin").read_text() == "a"
    assert len(log_of(tmp_path)) == 2

    wrong = {path_in(tmp_path, "b"): "0" * 32}
    for hashes, told in ((wrong, "does not match"), ({}, "Unspecified hash for file")):
        with pytest.raises(RuntimeError, match=told) as caught:
            list(chain(tmp_path, "b", hash_dict=hashes, hash_type="md5"))
        assert caught.type is HashMismatch
        assert not (tmp_path / "b.bin").exists()
    assert left_over(tmp_path) == []
    with pytest.raises(ValueError, match="Invalid hash_type"):
        chain(tmp_path, "b", hash_dict={}, hash_type="crc")


def is_long(path):
    return os.path.getsize(path) > 1


def test_a_check_of_the_users_own(tmp_path):
    """A file that will not do is made again."""
    pipe = chain(tmp_path, ["a", "bb"], extra_check_fn=is_long)

    assert list(pipe) == list(pipe)
    assert log_of(tmp_path) == ["a", "bb", "a"]


def test_one_cache_after_another(tmp_path):
    """Each end ends its own beginning; what was downloaded is unpacked once."""
    into = functools.partial(path_in, tmp_path)
    tars = IterableWrapper(["2", "1"]).on_disk_cache(into).map(functools.partial(as_tar, tmp_path))
    tars = tars.end_caching(filepath_fn=functools.partial(beside, ".bin"))
    begun = tars.on_disk_cache(functools.partial(beside, ".unpacked"))
    members = begun.open_files(mode="b").load_from_tar().end_caching(filepath_fn=apart)
    expected = [str(tmp_path / f"{n}.bin.out" / f"{k}.txt") for n in (2, 1) for k in range(n)]

    for _ in range(2):
        assert list(members) == expected
    assert log_of(tmp_path) == ["2", "1"]


def beside(suffix, path):
    return str(Path(path).with_suffix(suffix))


def apart(path):
    folder, name = os.path.split(path)
    return os.path.join(f"{folder}.out", name)


def test_what_does_not_pair_is_refused(tmp_path):
    """At construction, where it can be; with torchdata's classes."""
    source = IterableWrapper(["a"])
    with pytest.raises(RuntimeError, match="Expected `OnDiskCacheHolder` existing") as caught:
        source.end_caching()
    assert caught.type is UnendedCache
    begun = source.on_disk_cache()
    with pytest.raises(RuntimeError, match=r"Please call `end_caching\(\)`"):
        list(begun)
    with pytest.raises(GraphError, match="mutually exclusive"):
        begun.end_caching(filepath_fn=str, same_filepath_fn=True)
    ended = begun.end_caching()
    with pytest.raises(RuntimeError, match="can only be invoked once"):
        ended.end_caching()
    with pytest.raises(ValueError, match="mode is"):
        source.on_disk_cache().end_caching("a")
    with pytest.raises(SampleError, match="a pair of a name and data"):
        list(IterableWrapper([str(tmp_path / "x")]).on_disk_cache().end_caching())
    with pytest.raises(SampleError, match="path of a file"):
        list(IterableWrapper([3]).on_disk_cache().end_caching())


def test_it_travels(tmp_path):
    """A copy in another process is the same cache."""
    pipe = pickle.loads(pickle.dumps(chain(tmp_path, "ab")))

    assert list(pipe) == [path_in(tmp_path, name) for name in "ab"]


def test_another_process_is_waited_for_last(tmp_path):
    """Others' files do not keep it from its own; the message says who, and what to do."""
    with claim(path_in(tmp_path, "b")):
        items = iter(vp.adapters.CacheTimeout(0)(chain(tmp_path, "abcd")))
        assert next(items) == path_in(tmp_path, "a")
        with pytest.raises(CacheBusy, match=f"process {os.getpid()} .*b.bin") as caught:
            next(items)
        assert "CacheTimeout(seconds)" in str(caught.value)
        assert isinstance(caught.value, TimeoutError)
    assert log_of(tmp_path) == ["a", "c", "d"]
    assert len(list(chain(tmp_path, "abcd"))) == 4
    assert log_of(tmp_path) == ["a", "c", "d", "b"]


def test_two_chains_in_one_thread_do_not_wait_for_each_other(tmp_path):
    """No right is held while an item is handed out."""
    one, other = (vp.adapters.CacheTimeout(0)(unpacked(tmp_path, ["3", "2"])) for _ in range(2))

    assert [a for a, b in zip(one, other, strict=True) if a != b] == []
    assert log_of(tmp_path) == ["3", "2"]


def test_the_adapter_changes_no_pipe_of_the_user(tmp_path):
    """And nothing at all where there is nothing to do."""
    pipe = chain(tmp_path, "a").map(str)
    adapted = vp.adapters.CacheTimeout(7)(pipe)

    assert adapted.datapipe.timeout == 7
    assert pipe.datapipe.timeout == 300
    assert vp.adapters.CacheTimeout(7)(adapted) is adapted
    assert repr(vp.adapters.CacheTimeout(7)) == "CacheTimeout(7)"
    for wrong in (None, -1, "5", float("nan"), True):
        with pytest.raises(ValueError, match="timeout should be integer"):
            vp.adapters.CacheTimeout(wrong)


def run_chain(folder, names, start):
    start.wait()
    assert list(chain(folder, names)) == [path_in(folder, name) for name in names]


def test_one_writer_per_file_among_processes(tmp_path):
    """Each of four processes sees every file, in order, and none is made twice."""
    names = [str(n) for n in range(200)]
    start = FORK.Event()
    jobs = [FORK.Process(target=run_chain, args=(tmp_path, names, start)) for _ in range(4)]
    for job in jobs:
        job.start()
    start.set()
    for job in jobs:
        job.join()

    assert [job.exitcode for job in jobs] == [0] * 4
    for job in jobs:
        job.close()
    assert sorted(log_of(tmp_path), key=int) == names
    assert left_over(tmp_path) == []


def hold(path, told):
    """Hold a promise, half a file written, until killed."""
    with claim(path):
        Path(f"{path}.half.part").write_text("half", encoding="utf-8")
        told.send(os.getpid())
        signal.pause()


def hold_in_a_child(path, told):
    """Fork while a promise is held: the child lets go of the lock, and outlives its parent."""
    with claim(path):
        if os.fork() == 0:
            told.send(os.getpid())  # by now it has released the lock
        signal.pause()


@pytest.mark.parametrize("holding", [hold, hold_in_a_child])
def test_what_a_killed_process_held_is_taken_over(tmp_path, holding):
    """While it lives nobody else makes the file; from its death on anybody may."""
    path = path_in(tmp_path, "a")
    ours, theirs = FORK.Pipe()
    owner = FORK.Process(target=holding, args=(path, theirs))
    owner.start()
    child = ours.recv()
    try:
        assert owner_of(path).startswith(f"process {owner.pid} on ")
        with pytest.raises(CacheBusy, match=f"process {owner.pid}"):
            list(vp.adapters.CacheTimeout(0)(chain(tmp_path, "a")))
        owner.kill()
        owner.join()
        assert list(vp.adapters.CacheTimeout(0)(chain(tmp_path, "a"))) == [path]
    finally:
        if child != owner.pid:
            os.kill(child, signal.SIGKILL)
        ours.close()
        theirs.close()
        owner.close()
    assert not os.path.exists(f"{path}.promise")


def stuck(told, folder, name):
    """Write half a file, and never go on."""

    def pieces():
        yield b"half"
        yield b"x" * 10**6  # beyond what is buffered
        told.send(0)
        signal.pause()

    return name, pieces()


def test_what_a_killed_process_had_written_is_written_over(tmp_path):
    """Half a file has another name, and the next maker writes under the same."""
    ours, theirs = FORK.Pipe()
    pipe = chain(tmp_path, "a", functools.partial(stuck, theirs))
    maker = FORK.Process(target=list, args=(pipe,))
    maker.start()
    ours.recv()
    maker.kill()
    maker.join()
    maker.close()
    ours.close()
    theirs.close()

    assert len(left_over(tmp_path)) == 2
    assert list(vp.adapters.CacheTimeout(0)(chain(tmp_path, "a"))) == [path_in(tmp_path, "a")]
    assert left_over(tmp_path) == []
    assert (tmp_path / "a.bin").read_text() == "a"


def with_size(path):
    return os.path.basename(path), os.path.getsize(path)


def test_in_workers_of_torch(tmp_path):
    """Each runs the whole chain; no file is made twice."""
    pipe = chain(tmp_path, [str(n) for n in range(20)]).map(with_size)
    loader = DataLoader(pipe, batch_size=None, num_workers=2, multiprocessing_context="fork")

    assert sorted(map(tuple, loader)) == sorted(2 * [(f"{n}.bin", len(str(n))) for n in range(20)])
    assert sorted(log_of(tmp_path), key=int) == [str(n) for n in range(20)]


def test_in_the_planner_of_the_loader(tmp_path):
    """Open files before the end of the cache do not keep the graph from being split."""
    pipe = unpacked(tmp_path, ["3", "1"]).map(with_size).batch(2)
    service = vp.MultiProcessingReadingService(2, "fork")
    with vp.DataLoader2(pipe, [vp.adapters.CacheTimeout(60)], service) as loader:
        assert "planned in this process" in loader.explain()
        batches = list(loader)

    assert batches == [[("0.txt", 1), ("1.txt", 1)], [("2.txt", 1), ("0.txt", 1)]]


def test_a_full_disk_blocks_nobody(tmp_path, monkeypatch):
    """A promise that cannot be written is given up, with its lock and its descriptor."""

    def full(file, data):
        raise OSError(errno.ENOSPC, "No space left on device")

    path = str(tmp_path / "a")
    before = open_files()

    with monkeypatch.context() as patch:
        patch.setattr("voxpipe.extensions.torchdata.on_disk_cache.os.write", full)
        with pytest.raises(OSError, match="No space left"), claim(path):
            pass

    assert (open_files(), left_over(tmp_path)) == (before, [])
    with claim(path) as is_ours:
        assert is_ours


def test_a_pipe_in_the_place_of_an_entry(tmp_path):
    """Nobody waits until somebody writes into it to look at its hash."""
    path = os.fspath(tmp_path / "a")
    os.mkfifo(path)
    cached = IterableWrapper([path]).on_disk_cache(hash_dict={path: "0" * 64})

    with pytest.raises(VoxpipeError, match="a is no regular file"):
        list(cached.map(lambda path: (path, b"x")).end_caching(skip_read=True))


def test_a_pipe_in_the_place_of_a_list_of_entries(tmp_path):
    """It is no list: the item is made again, and the list takes its place."""
    path = os.fspath(tmp_path / "a")
    os.mkfifo(f"{path}.files.json")
    cached = IterableWrapper([path]).on_disk_cache().map(lambda path: (f"{path}0", b"x"))

    assert list(cached.end_caching(skip_read=True)) == [f"{path}0"]
    assert os.path.isfile(f"{path}.files.json")


@pytest.mark.parametrize("several", [False, True])
def test_an_entry_is_on_the_disk_before_it_has_its_name(tmp_path, monkeypatch, several):
    """A machine that loses its power leaves all of a file or nothing, and no list without files."""
    synced, named = set(), []
    fsync, replace = os.fsync, os.replace

    def sync(fd):
        fsync(fd)
        status = os.fstat(fd)
        synced.add((status.st_ino, status.st_size))

    def rename(old, new):
        status = os.stat(old)
        named.append((os.path.basename(new), (status.st_ino, status.st_size) in synced))
        replace(old, new)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", rename)
    item = os.fspath(tmp_path / "a")
    names = [f"{item}{n}" for n in range(2)] if several else [item]
    cached = (
        IterableWrapper([item])
        .on_disk_cache()
        .flatmap(lambda path: [(name, b"12345") for name in names])
    )

    assert list(cached.end_caching(skip_read=True)) == names
    expected = ["a0", "a1", "a.files.json"] if several else ["a"]
    assert named == [(name, True) for name in expected]
    assert (tmp_path.stat().st_ino, tmp_path.stat().st_size) in synced


@pytest.mark.parametrize("url", ["memory://kept/a.bin", "s3://bucket/a.bin", "https://host/a.bin"])
def test_a_url_is_no_place_for_a_cached_file(tmp_path, monkeypatch, url):
    """Also as the name of a result, and for ``save_to_disk``; no folder is made of its scheme."""
    monkeypatch.chdir(tmp_path)
    chains = [
        IterableWrapper(["a"]).on_disk_cache(lambda _: url).map(lambda u: (u, b"")).end_caching(),
        IterableWrapper(["a"]).on_disk_cache().map(lambda u: (url, b"")).end_caching(),
        IterableWrapper([(url, b"")]).save_to_disk(),
    ]
    for chain in chains:
        with pytest.raises(SampleError, match="is a URL"):
            list(chain)

    assert not [place for place in tmp_path.iterdir() if ":" in place.name]
