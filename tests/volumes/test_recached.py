"""Copies in the cache: made once, the same values, never evicted while in use."""

import os
import shutil
import threading

import numpy as np
import pytest
from nifti_files import AFFINE, numbered, write_nifti

from voxpipe.core import IO_COUNTERS, Region
from voxpipe.core.errors import CacheTooSmall, CorruptVolume
from voxpipe.volumes import Volume, close_volumes, recache
from voxpipe.volumes.conversion import convert as converted_cache

pytest.importorskip("zarr")


@pytest.fixture(autouse=True)
def closed():
    yield
    close_volumes()


@pytest.fixture
def converted(monkeypatch):
    """Count the volumes that are written."""
    calls = []
    write = converted_cache.write_planned
    monkeypatch.setattr(
        converted_cache, "write_planned", lambda *a, **k: calls.append(a[0].name) or write(*a, **k)
    )
    return calls


def scan(path, seed=0):
    """Write a volume that does not compress."""
    array = np.random.default_rng(seed).integers(-999, 999, (20, 21, 22)).astype(np.int16)
    return write_nifti(path, array, scaling=(0.5, 3.0))


def test_the_header_is_known_before_the_copy_is_made(tmp_path, converted):
    """Planning an epoch converts nothing."""
    original = Volume(scan(tmp_path / "a.nii"))
    volume = recache(original, chunk=8, directory=str(tmp_path / "cache"))

    assert (volume.shape, volume.chunks, volume.access) == ((1, 20, 21, 22), (8, 8, 8), "range")
    assert (volume.dtype, volume.disk_dtype) == (original.dtype, original.disk_dtype)
    np.testing.assert_array_equal(volume.affine, AFFINE)
    assert (converted, (tmp_path / "cache").exists()) == ([], False)


def test_the_first_read_makes_the_copy_and_the_next_ones_use_it(tmp_path, converted):
    """In this process and in others, as long as the original stays."""
    original = Volume(scan(tmp_path / "a.nii"))
    region = Region((3, 4, 5), (13, 14, 15))
    for _ in range(3):
        volume = recache(Volume(tmp_path / "a.nii"), chunk=8, directory=str(tmp_path / "cache"))
        values = volume.read(region).values()
        np.testing.assert_array_equal(values, original.read(region).values())
        close_volumes()

    assert len(converted) == 1
    assert volume.probe().header == volume.header


def test_a_written_original_is_copied_anew(tmp_path, converted):
    """The name of the copy is made of the content of the original."""
    directory = str(tmp_path / "cache")
    recache(Volume(scan(tmp_path / "a.nii")), directory=directory).numpy()
    close_volumes()
    scan(tmp_path / "a.nii", seed=1)
    os.utime(tmp_path / "a.nii", ns=(1, 1))

    found = recache(Volume(tmp_path / "a.nii"), directory=directory).numpy()

    np.testing.assert_array_equal(found, Volume(tmp_path / "a.nii").numpy())
    assert len(converted) == 2


def test_an_affine_of_the_users_own_is_kept(tmp_path):
    """What was said when the volume was opened holds for the copy."""
    affine = np.diag([3.0, 2.0, 1.0, 1.0])
    volume = Volume(scan(tmp_path / "a.nii"), affine=affine)

    copy = recache(volume, directory=str(tmp_path / "cache"))

    np.testing.assert_array_equal(copy.affine, affine)
    np.testing.assert_array_equal(copy.numpy(), volume.numpy())


def test_voxels_in_memory_stay_there():
    """They are faster than any copy."""
    volume = Volume(numbered((4, 4, 4)))

    assert recache(volume) is volume


def entries(directory):
    return sorted(p.stem for p in directory.glob("*.zarr"))


def test_the_least_recently_used_copy_goes(tmp_path, monkeypatch):
    """The budget holds for the copies together."""
    monkeypatch.setenv("VOXPIPE_CACHE_BYTES", "50000")  # two copies of about 20 kB
    for n, name in enumerate("abc"):
        recache(Volume(scan(tmp_path / f"{name}.nii")), directory=str(tmp_path / "cache")).numpy()
        close_volumes()
        newest = set(entries(tmp_path / "cache"))
        for entry in newest:
            path = tmp_path / "cache" / f"{entry}.zarr"
            if path.stat().st_mtime_ns > 10**9:
                os.utime(path, ns=(n, n))
                last = entry

    assert len(newest) == 2
    assert last in newest


def test_a_copy_in_use_stays(tmp_path, monkeypatch):
    """A folder is opened again with every read: evicted, it would read as zeros."""
    monkeypatch.setenv("VOXPIPE_CACHE_BYTES", "30000")
    directory = str(tmp_path / "cache")
    first = recache(Volume(scan(tmp_path / "a.nii")), directory=directory)
    whole = first.numpy().copy()
    recache(Volume(scan(tmp_path / "b.nii", seed=1)), directory=directory).numpy()

    np.testing.assert_array_equal(first.numpy(), whole)
    close_volumes()
    recache(Volume(scan(tmp_path / "c.nii", seed=2)), directory=directory).numpy()

    assert len(entries(tmp_path / "cache")) == 1


def test_a_copy_larger_than_the_budget_is_refused(tmp_path, monkeypatch):
    """The message names both numbers, and the way out."""
    monkeypatch.setenv("VOXPIPE_CACHE_BYTES", "1000")
    volume = recache(Volume(scan(tmp_path / "a.nii")), directory=str(tmp_path / "cache"))

    with pytest.raises(CacheTooSmall, match=r"a\.nii converts to \d+ bytes.*1000"):
        volume.numpy()

    assert entries(tmp_path / "cache") == []


def test_a_removed_shard_is_not_taken_for_zeros(tmp_path):
    """Zarr says that a chunk that is not there is empty; here it means that somebody cleaned."""
    volume = recache(Volume(scan(tmp_path / "a.nii")), chunk=8, directory=str(tmp_path / "cache"))
    volume.read(Region((0, 0, 0), (1, 1, 1)))
    (entry,) = (tmp_path / "cache").glob("*.zarr")
    shutil.rmtree(entry / "0" / "c")

    with pytest.raises(CorruptVolume, match="was removed"):
        volume.read(Region((0, 0, 0), (20, 21, 22)))


def test_two_readers_make_one_copy(tmp_path):
    """One converts, the other waits: every voxel of the original is read once."""
    scan(tmp_path / "a.nii")
    before = IO_COUNTERS.snapshot()
    directory = str(tmp_path / "cache")
    sources = [
        recache(Volume(tmp_path / "a.nii"), directory=directory)._source  # opened past the handles
        for _ in range(2)
    ]
    threads = [threading.Thread(target=source.open) for source in sources]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    assert (IO_COUNTERS.snapshot() - before).reads == 1
    assert len(entries(tmp_path / "cache")) == 1
