"""One budget for decoded and converted volumes; what killed processes left is collected."""

import fcntl
import os
import shutil

import pytest

from voxpipe.storage.disk_cache import make_room
from voxpipe.storage.volume_cache import VolumeCache, converted_entries


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "converted" / "locks").mkdir(parents=True)
    return tmp_path


def group(folder, name, size, last_used=1):
    """Put an entry of some bytes there."""
    path = folder / "converted" / name
    path.mkdir()
    (path / "x").write_bytes(bytes(size))
    os.utime(path, (last_used, last_used))
    return path


def test_decoding_makes_room_among_the_converted_volumes(folder):
    """The least recently used first."""
    old, new = group(folder, "a.zarr", 60, 1), group(folder, "b.zarr", 30, 2)

    VolumeCache(folder, 100).open("k", 50, lambda raw: raw.write(bytes(50)), "n").close()

    assert (old.exists(), new.exists(), (folder / "k.nii").exists()) == (False, True, True)


def test_converting_makes_room_among_the_decoded_volumes(folder):
    """Where they share a budget; else they are nobody's business."""
    VolumeCache(folder, 100).open("k", 50, lambda raw: raw.write(bytes(50)), "n").close()
    os.utime(folder / "k.nii", (1, 1))
    group(folder, "a.zarr", 60, 2)

    VolumeCache(folder / "converted", 100)._trim(keep="a")
    assert (folder / "k.nii").exists()
    VolumeCache(folder / "converted", 100, decoded_directory=folder)._trim(keep="a")
    assert not (folder / "k.nii").exists()


def test_what_a_user_keeps_in_a_directory_of_copies_stays(folder):
    """It may be the folder of the scans themselves, of which none is an entry."""
    for name in ("scan.nii", "table.csv", "download.part"):
        (folder / name).write_bytes(bytes(60))
    shutil.move(group(folder, "a.zarr", 60), folder / "a.zarr")

    VolumeCache(folder, 100)._trim(keep="a")

    assert all((folder / name).exists() for name in ("scan.nii", "table.csv", "download.part"))


def test_what_killed_processes_left_goes_first(folder):
    """A conversion half done, and an entry half removed."""
    left = [group(folder, ".z.zarr.part", 5000), group(folder, ".a.gone", 1000)]
    kept = [group(folder, "a.zarr", 50, 1), group(folder, "b.zarr", 50, 2)]

    VolumeCache(folder / "converted", 100)._trim(keep="b")

    assert [path.exists() for path in left + kept] == [False, False, True, True]


def test_a_conversion_that_goes_on_stays(folder):
    """Its writer holds the lock of the entry."""
    part = group(folder, ".z.zarr.part", 5000)
    with open(folder / "converted" / "locks" / "z", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        VolumeCache(folder / "converted", 100)._trim(keep="b")
    assert part.exists()


def test_what_could_not_be_removed_is_not_counted_as_free(folder, monkeypatch):
    """So the next one goes too."""
    group(folder, "a.zarr", 60, 1), group(folder, "b.zarr", 60, 2)
    monkeypatch.setattr(shutil, "rmtree", lambda *a, **k: None)

    assert make_room(list(converted_entries(folder / "converted")), 70) == 120
