"""Entries of caches that were cut, changed, or put there by somebody else: none is believed."""

import json
import os
import random
import shutil
import stat
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import disks
import nibabel
import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core.errors import CacheBusy
from voxpipe.spatial.placing.sampling_mask import forget_masks, sampling_mask
from voxpipe.storage import disk_cache as check_sums
from voxpipe.storage.disk_cache import (
    cache_directory,
    hold_lock,
    open_lock,
    own_folder,
    read_entry,
    take_lock,
    write_entry,
)
from voxpipe.volumes import Volume, close_volumes
from voxpipe.volumes.catalog import whole_pass

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="owners and links as on Linux")
WAIT = 60.0


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache"
    close_volumes()


def scan(path, seed=0):
    voxels = np.random.default_rng(seed).integers(0, 9, (9, 8, 7)).astype(np.int16)
    nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), path)
    return path


def forget(monkeypatch):
    """Forget what this process remembers, as if it had just begun."""
    close_volumes()
    forget_masks()
    for cache in (whole_pass.STATISTICS, whole_pass.HISTOGRAMS, whole_pass.BOXES):
        cache.memory.clear()
    check_sums._LOOKED_THROUGH.clear()


def everything(path, kept):
    """Return what is worked out of a volume and kept, and its voxels through both copies."""
    volume = Volume(path, kind="label")
    chain = vp.from_cases([{"image": str(path)}]).open_volume()
    mask = sampling_mask(volume, volume.grid, None, (1, 2))
    found = whole_pass.volume_histogram(volume)
    return (
        volume.numpy().tobytes(),
        next(iter(chain.cache(kept, chunk=4)))["image"].realize().tobytes(),
        whole_pass.volume_statistics(volume),
        (found.values.tolist(), found.counts.tolist()),
        whole_pass.occupied_box(volume, whole_pass.ForegroundRule(above=4)),
        [(table.total, table.places) for table in mask.tables],
    )


def files_in(*folders):
    """Return all files of caches, but locks."""
    found = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return sorted(path for path in found if "locks" not in path.parts)


def test_damaged_entries_are_made_again(attacks, tmp_path, cache, monkeypatch):
    """Cut, flipped, filled with zeros, longer or gone; also where the time of writing is the same.

    As a machine leaves them that loses its power: check sums are looked at after each start.
    """
    path, kept = scan(tmp_path / "a.nii.gz"), tmp_path / "kept"
    expected = everything(path, kept)
    whole = {file: file.read_bytes() for file in files_in(cache, kept)}
    assert len(whole) >= 12

    def attempt(seed):
        drawn = random.Random(seed)
        file = drawn.choice(sorted(whole))
        before = os.stat(file)
        if drawn.random() < 0.1:
            file.unlink()
        else:
            disks.damage(file, drawn)
            if drawn.random() < 0.5:
                os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(check_sums, "boot", lambda: f"start {seed}")
            forget(patch)
            assert everything(path, kept) == expected
            # Made again, whole: the next one finds everything.
            forget(patch)
            assert everything(path, kept) == expected
        sound = [name for name in whole if "sums" not in name.parts and "kept" not in name.parts]
        assert [name for name in sound if name.read_bytes() != whole[name]] == []

    attacks.each(attempt, quick=6, whole=2000)


def test_an_entry_is_cut_at_every_length(tmp_path):
    """And every bit of it is flipped: none of them is the entry."""
    entry = tmp_path / "entry"
    write_entry(entry, json.dumps({"mean": 1.5}).encode())
    whole = entry.read_bytes()
    assert read_entry(entry) == b'{"mean": 1.5}'

    for length in range(len(whole)):
        entry.write_bytes(whole[:length])
        assert read_entry(entry) is None
    for bit in range(8 * len(whole)):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        entry.write_bytes(changed)
        assert read_entry(entry) in (None, b'{"mean": 1.5}')  # a flip may turn a blank into a tab


def test_an_unchanged_entry_is_looked_through_once_for_each_start(tmp_path, cache, monkeypatch):
    """Not each time it is opened, which would cost as much as decoding."""
    path = scan(tmp_path / "a.nii.gz")
    looked = []
    true = check_sums.check_sum
    Volume(path).numpy()
    monkeypatch.setattr(check_sums, "check_sum", lambda file: looked.append(1) or true(file))
    for start, times in (("same", 0), ("next", 1), ("next", 0)):
        close_volumes()
        check_sums._LOOKED_THROUGH.clear()
        if start != "same":
            monkeypatch.setattr(check_sums, "boot", lambda start=start: start)
        looked.clear()
        Volume(path).numpy()
        assert len(looked) == times


def test_what_a_writer_left_before_the_machine_went_down_is_not_continued(tmp_path, monkeypatch):
    """Its journal may speak of shards that did not reach the disk."""
    from voxpipe.volumes import convert

    volume = Volume(scan(tmp_path / "a.nii"))

    def die(done, total):
        if 0 < done < total:
            raise KeyboardInterrupt

    for start, written in (("same", 1), ("next", 2)):
        shutil.rmtree(tmp_path / "b.zarr", ignore_errors=True)
        with pytest.raises(KeyboardInterrupt):
            convert(volume, tmp_path / "b.zarr", chunk=4, shard=8, progress=die)
        if start != "same":
            monkeypatch.setattr("voxpipe.volumes.conversion.destination.boot", lambda: "next")
        assert convert(volume, tmp_path / "b.zarr", chunk=4, shard=8).new_shards == written


@pytest.mark.parametrize("how", ["owner", "group", "everybody", "link", "pipe"])
def test_what_somebody_else_may_have_put_there_is_not_believed(how, tmp_path, cache, monkeypatch):
    """Another owner, a mode that lets others write, a link: made again, in its place."""
    path, kept = scan(tmp_path / "a.nii.gz"), tmp_path / "kept"
    expected = everything(path, kept)
    other = tmp_path / "other"
    for file in files_in(cache, kept):
        if how == "owner":
            if os.geteuid():
                pytest.skip("only root gives files away")
            os.chown(file, disks.NOBODY, disks.NOBODY)
        elif how in ("group", "everybody"):
            file.chmod(0o620 if how == "group" else 0o602)
        else:
            content = file.read_bytes()
            file.unlink()
            if how == "link":
                other.write_bytes(content)
                file.symlink_to(other)
            else:
                os.mkfifo(file)
    forget(monkeypatch)
    assert everything(path, kept) == expected
    status = [os.lstat(file) for file in files_in(cache, kept)]
    assert {stat.S_ISREG(one.st_mode) and one.st_uid for one in status} == {os.geteuid()}
    assert [one for one in status if one.st_mode & 0o022] == []


def test_a_link_in_the_place_of_a_lock_is_replaced(tmp_path, cache):
    """Somebody could let us make or touch a file of ours elsewhere; none is there the next time."""
    (cache / "locks").mkdir(parents=True)
    (tmp_path / "there").write_text("as it was")
    locks = [
        cache / "locks" / name for name in ("directory", *(f"entry-{n:02x}" for n in range(256)))
    ]
    for number, lock in enumerate(locks):
        lock.symlink_to(tmp_path / ("there" if number % 2 else "victim"))
    path = scan(tmp_path / "a.nii.gz")

    assert Volume(path).numpy().shape == (1, 9, 8, 7)

    assert not (tmp_path / "victim").exists()
    assert (tmp_path / "there").read_text() == "as it was"
    taken = [lock for lock in locks if not lock.is_symlink()]
    assert len(taken) == 2
    assert all(stat.S_ISREG(os.lstat(lock).st_mode) for lock in taken)
    assert len(list(cache.glob("*.nii"))) == 1


def test_processes_that_replace_a_link_have_one_lock(tmp_path):
    """None takes away the file of which another has the lock already."""
    place = tmp_path / "lock"

    def have(start):
        start.wait(WAIT)
        return open_lock(place)

    for _ in range(50):
        place.unlink(missing_ok=True)
        place.symlink_to(tmp_path / "victim")
        start = threading.Barrier(4)
        with ThreadPoolExecutor(4) as threads:
            opened = [threads.submit(have, start) for _ in range(4)]
            files = [one.result(WAIT) for one in opened]
        assert {os.fstat(file.fileno()).st_ino for file in files} == {os.lstat(place).st_ino}
        for file in files:
            file.close()


def test_a_forked_child_holds_no_lock_of_its_parent(tmp_path):
    """A child that outlives the writer of an entry does not keep others from writing it."""
    place, done = tmp_path / "lock", os.pipe()
    with hold_lock(place, time.monotonic() + WAIT, lambda: CacheBusy("held.", do="")):
        ready = os.pipe()
        child = os.fork()
        if child == 0:
            os.write(ready[1], b"x")
            os.close(done[1])
            os.read(done[0], 1)  # until the parent closes its end
            os._exit(0)
        assert os.read(ready[0], 1) == b"x"
        assert take_lock(place) is None
    try:
        with take_lock(place) as lock:
            assert lock.is_named
    finally:
        os.close(done[1])
        os.waitpid(child, 0)
        for end in (*ready, done[0]):
            os.close(end)


def test_each_user_has_a_folder_in_a_shared_one(tmp_path, monkeypatch):
    """Nobody can guess its name, or make it beforehand; it is found again."""
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setenv("VOXPIPE_CACHE", str(shared))
    uid = os.geteuid()
    trap = shared / f"user-{uid}-0-trap"
    trap.mkdir(mode=0o777)
    trap.chmod(0o777)
    (shared / f"user-{uid}-0-link").symlink_to(tmp_path)

    own = cache_directory()
    assert own == cache_directory() == own_folder(shared)
    assert (own.parent, stat.S_IMODE(own.stat().st_mode)) == (shared, 0o700)
    assert len(own.name.rpartition("-")[2]) == 16
    assert own_folder(own) == own
    Volume(scan(tmp_path / "a.nii.gz")).numpy()
    close_volumes()
    assert [path.name for path in own.glob("*.nii")] != []
    assert list(trap.iterdir()) == []
    other = tmp_path / "other"
    other.mkdir()
    other.chmod(0o770)
    assert own_folder(other).name != own.name


def test_a_folder_of_ones_own_is_used_as_it_is(tmp_path):
    """Also one that others may look into, and one that is not there yet."""
    for mode in (0o700, 0o755):
        tmp_path.chmod(mode)
        assert own_folder(tmp_path) == tmp_path
    assert own_folder(tmp_path / "new") == tmp_path / "new"
