"""Caches on disks that are full, or may not be written to: reading goes on, and says so once."""

import errno
import os
import random
import shutil
import sys
import warnings

import disks
import fsspec
import nibabel
import numpy as np
import pytest
from sampled import sampled

import voxpipe as vp
from voxpipe.core.errors import (
    CacheTooSmall,
    CacheUnused,
    DestinationFull,
    VolumeError,
    VolumeReadError,
)
from voxpipe.spatial.placing.sampling_mask import forget_masks, sampling_mask
from voxpipe.storage import disk_cache as check_sums
from voxpipe.volumes import Volume, array_source, close_volumes, convert
from voxpipe.volumes.catalog import whole_pass

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="mounts as Linux has them")

SHAPE = (40, 40, 40)
# Voxels decoded, and two copies of them, of which none compresses to less than half.
NEEDED = 2 * 40**3 * 2


@pytest.fixture(autouse=True)
def closed():
    yield
    close_volumes()
    forget_masks()


def scan(path, seed=0):
    """Write a volume of 128 kB that does not compress."""
    voxels = np.random.default_rng(seed).integers(-999, 999, SHAPE).astype(np.int16)
    nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), path)
    return path


def forget():
    """Forget what this process remembers, as if it had just begun."""
    close_volumes()
    forget_masks()
    for cache in (whole_pass.STATISTICS, whole_pass.HISTOGRAMS, whole_pass.BOXES):
        cache.memory.clear()
    check_sums._LOOKED_THROUGH.clear()


def kept_chain(path, folder):
    """Return voxels that a chain made, and kept in a folder."""
    pipe = vp.from_cases([{"image": str(path)}]).open_volume().spacing(2.0).cache(folder)
    return next(iter(pipe))["image"].realize().tobytes()


def everything(path, folder):
    """Return what every cache answers of a volume."""
    volume = Volume(path, kind="label")
    mask = sampling_mask(volume, volume.grid, (8, 8, 8), (1, 2))
    return (
        volume.numpy().tobytes(),
        kept_chain(path, folder / "made"),
        whole_pass.volume_statistics(volume),
        whole_pass.volume_histogram(volume).mean,
        whole_pass.occupied_box(volume, whole_pass.ForegroundRule(above=4)),
        mask.tables[0].voxels,
    )


def told_of(act):
    """Return what an act returns, and the warnings of caches."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = act()
    assert {warning.category for warning in caught} <= {CacheUnused}
    return found, [str(warning.message) for warning in caught]


def test_reading_goes_on_where_a_disk_fills(attacks, tmp_path, monkeypatch):
    """Of whatever size: right voxels, no entry in part, and one warning for each folder."""
    path = scan(tmp_path / "a.nii.gz")
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "large"))
    expected = everything(path, tmp_path / "large")

    def attempt(seed):
        size = 4096 * random.Random(seed).randint(6, 170)
        with disks.full_disk(tmp_path / f"disk{seed}", size) as disk:
            monkeypatch.setenv("VOXPIPE_CACHE", str(disk / "cache"))
            forget()
            found, told = told_of(lambda: everything(path, disk))
            assert found == expected
            folders = [text.partition(" cannot take ")[0] for text in told]
            assert len(set(folders)) == len(folders)
            assert all("No space left" in text and " are free there" in text for text in told)
            assert told or size > NEEDED
            assert list(disk.rglob("*.part")) == []
            forget()
            found, told = told_of(lambda: everything(path, disk))
            assert (found, told) == (expected, [])
            close_volumes()
        (tmp_path / f"disk{seed}").rmdir()

    attacks.each(attempt, quick=1, whole=250)


def test_the_warning_names_folder_size_and_limit(tmp_path, monkeypatch):
    """And what to do."""
    path = scan(tmp_path / "a.nii.gz")
    with disks.full_disk(tmp_path / "disk", 100_000) as disk:
        monkeypatch.setenv("VOXPIPE_CACHE", str(disk))
        monkeypatch.setenv("VOXPIPE_CACHE_BYTES", "5000000")
        found, (told,) = told_of(lambda: Volume(path).numpy())
        for part in (str(disk), "128352 bytes of", "a.nii.gz", "allows 5000000", "VOXPIPE_CACHE"):
            assert part in told
        close_volumes()
    assert np.array_equal(found, np.asarray(nibabel.load(path).dataobj)[None])


def test_a_disk_that_says_so_late_is_full_as_well(tmp_path, monkeypatch):
    """When what was written is brought to it, as disks of other machines do; needs no root."""
    path = scan(tmp_path / "a.nii.gz")
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "cache"))
    expected = everything(path, tmp_path)
    shutil.rmtree(tmp_path / "cache"), shutil.rmtree(tmp_path / "made")
    forget()

    def full(fd):
        raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "fsync", full)
    found, told = told_of(lambda: everything(path, tmp_path))

    assert found == expected
    assert all("quota" in text for text in told)
    assert len(told) >= 4
    left = [p for f in ("cache", "made") for p in (tmp_path / f).rglob("*") if p.is_file()]
    assert [p for p in left if "locks" not in p.parts] == []


def readable(folder, path, monkeypatch):
    """Fill all caches; return what they answer."""
    monkeypatch.setenv("VOXPIPE_CACHE", str(folder / "deep" / "cache"))
    expected = everything(path, folder)
    forget()
    return expected


@pytest.mark.parametrize("locks", ["there", "gone"])
@pytest.mark.parametrize("how", [disks.read_only_mount, disks.without_permission])
def test_a_warm_cache_that_may_not_be_written_to_serves(how, locks, monkeypatch):
    """All of it: nothing is decoded, copied or worked out again, and nothing is told."""
    with disks.open_folder() as folder:
        path = scan(folder / "a.nii.gz")
        expected = readable(folder, path, monkeypatch)
        if locks == "gone":
            for place in [*folder.rglob("locks")]:
                shutil.rmtree(place)
        before = sorted(folder.rglob("*"))
        with how(folder), pytest.MonkeyPatch.context() as patch:
            patch.setattr("voxpipe.storage.volume_cache.VolumeCache._make_file", NotImplemented)
            patch.setattr("voxpipe.volumes.conversion.convert.write_planned", NotImplemented)
            patch.setattr(whole_pass, "_histogram", NotImplemented)
            patch.setattr(whole_pass, "_compute", NotImplemented)
            assert told_of(lambda: everything(path, folder)) == (expected, [])
            close_volumes()
        assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize("how", [disks.read_only_mount, disks.without_permission])
def test_a_cold_cache_that_may_not_be_written_to_is_told_once(how, monkeypatch):
    """And reading goes on."""
    with disks.open_folder() as folder:
        path = scan(folder / "a.nii.gz")
        expected = readable(folder, path, monkeypatch)
        for name in ("deep", "made"):
            shutil.rmtree(folder / name)
        with how(folder):
            found, told = told_of(lambda: everything(path, folder))
            close_volumes()
        assert found == expected
        assert len(told) == 2  # decoded volumes, and the folder of copies
        assert sorted(path.name for path in folder.iterdir()) == ["a.nii.gz"]


def test_voxels_in_memory_travel_where_the_disk_is_full(tmp_path, monkeypatch):
    """To another process, as they do over the disk."""
    array = np.arange(64_000, dtype=np.int16).reshape(SHAPE)
    with disks.full_disk(tmp_path / "disk", 40_000) as disk:
        monkeypatch.setattr("tempfile.tempdir", str(disk))
        monkeypatch.setattr(array_source, "_CURRENT", {})
        volume = Volume(array)
        source = volume._source
        (_, (_, kind, *arguments)), told = told_of(source.__reduce__)
        there = kind(*arguments).open()
        assert np.array_equal(there.read(volume.grid.region).array[0], array)
        assert len(told) == 1
        assert "TMPDIR" in told[0]
        small = Volume(np.ones((2, 2, 2), np.int16))
        assert told_of(small._source.__reduce__)[1] == []
        del there, volume, source, small


def test_a_conversion_to_a_full_disk_is_told_and_continued(tmp_path):
    """What was written stays: with more room the rest is written."""
    volume = Volume(scan(tmp_path / "a.nii"))
    with disks.full_disk(tmp_path / "disk", 90_000) as disk:
        with pytest.raises(DestinationFull, match=r"the disk of .*b\.zarr is full") as caught:
            convert(volume, disk / "b.zarr", chunk=8, shard=16)
        assert isinstance(caught.value, OSError)
        assert not (disk / "b.zarr").exists()
        disks.grow(disk, 10**6)
        done = convert(volume, disk / "b.zarr", chunk=8, shard=16)
        assert done.new_shards + done.reused_shards == 27
        assert done.reused_shards > 0
        assert np.array_equal(Volume(disk / "b.zarr").numpy(), volume.numpy())
        close_volumes()


def test_a_copy_of_a_remote_file_is_made_in_memory(tmp_path, monkeypatch):
    """By a library that opens files by name, too."""
    blosc2 = pytest.importorskip("blosc2")
    array = np.random.default_rng(0).integers(0, 999, (1, *SHAPE)).astype(np.int16)
    stored = blosc2.asarray(array, urlpath=str(tmp_path / "a.b2nd"), mode="w")
    del stored
    fsspec.filesystem("memory").pipe_file("/full/a.b2nd", (tmp_path / "a.b2nd").read_bytes())
    with disks.full_disk(tmp_path / "disk", 40_000) as disk:
        monkeypatch.setenv("VOXPIPE_CACHE", str(disk))
        found, told = told_of(lambda: Volume("memory://full/a.b2nd").numpy())
        assert np.array_equal(found, array)
        assert len(told) == 1
        close_volumes()


def files_in(folder):
    """Return what is there but locks."""
    return [p for p in folder.rglob("*") if p.is_file() and "locks" not in p.parts]


def test_reading_goes_on_where_files_may_not_be_long(attacks, tmp_path, monkeypatch):
    """By ``ulimit -f``, which counts for files in memory too: as where a disk is full."""
    path = scan(tmp_path / "a.nii.gz")
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "large"))
    expected = everything(path, tmp_path / "large")

    def attempt(seed):
        folder = tmp_path / f"limit{seed}"
        monkeypatch.setenv("VOXPIPE_CACHE", str(folder / "cache"))
        size = random.Random(seed).choice((0, 10, 1000, 5000, 70_000, 127_999))
        forget()
        with disks.longest_file(size):
            found, told = told_of(lambda: everything(path, folder))
        assert found == expected
        folders = [text.partition(" cannot take ")[0] for text in told]
        assert len(set(folders)) == len(folders) > 0
        assert all("File too large" in text for text in told)
        assert "128352 bytes of" in told[0]
        assert [p for p in files_in(folder) if p.suffix == ".part" or not p.stat().st_size] == []
        forget()
        assert told_of(lambda: everything(path, folder)) == (expected, [])

    attacks.each(attempt, quick=3, whole=60)


@pytest.mark.parametrize("size", [0, 10, 300, 700, 2000])
def test_a_conversion_that_may_not_write_long_files_is_told(tmp_path, size):
    """By name, and nothing is left that a conversion would stumble over."""
    volume = Volume(scan(tmp_path / "a.nii"))
    with (
        disks.longest_file(size),
        pytest.raises(
            DestinationFull, match=r"b\.zarr is longer than may be written: File too large"
        ),
    ):
        convert(volume, tmp_path / "b.zarr", chunk=8, shard=40)
    assert not (tmp_path / "b.zarr").exists()

    done = convert(volume, tmp_path / "b.zarr", chunk=8, shard=40)
    assert done.new_shards + done.reused_shards == 1
    assert np.array_equal(Volume(tmp_path / "b.zarr").numpy(), volume.numpy())
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.nii", "b.zarr"]


def test_a_first_file_that_cannot_be_written_leaves_nothing(tmp_path):
    """Not even a folder, where there was none before."""
    volume = Volume(scan(tmp_path / "a.nii"))
    with disks.longest_file(0), pytest.raises(DestinationFull):
        convert(volume, tmp_path / "b.zarr", chunk=8, shard=40)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.nii"]


FAILING = ("ENOSPC", "EDQUOT", "EFBIG", "EIO", "EROFS")


@pytest.mark.parametrize("name", sampled(FAILING))
@pytest.mark.parametrize("call", ["fsync", "ftruncate", "replace", "rename"])
def test_whatever_a_disk_says_reading_goes_on(tmp_path, monkeypatch, name, call):
    """Of a call that writes: one warning for each folder, and no file in part."""
    path = scan(tmp_path / "a.nii.gz")
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "large"))
    expected = everything(path, tmp_path / "large")
    forget()
    folder = tmp_path / "small"
    monkeypatch.setenv("VOXPIPE_CACHE", str(folder / "cache"))
    said, real = getattr(errno, name), getattr(os, call)

    def fail(first, *others, **named):
        place = first if isinstance(first, str) else os.fspath(first) if call[0] == "r" else ""
        if call[0] != "r":
            place = os.readlink(f"/proc/self/fd/{first}")
        if not place.startswith(str(folder)):
            return real(first, *others, **named)
        raise OSError(said, os.strerror(said), place)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        found, told = told_of(lambda: everything(path, folder))
    assert found == expected
    assert all(os.strerror(said) in text for text in told)
    assert [p for p in files_in(folder) if p.suffix == ".part"] == []


@pytest.mark.parametrize("name", ["EIO", "EROFS", "EACCES"])
def test_a_conversion_that_a_broken_disk_ends_is_named(tmp_path, monkeypatch, name):
    """What stood there before is there again, and nothing else is left."""
    volume, place = Volume(scan(tmp_path / "a.nii")), tmp_path / "b.zarr"
    convert(Volume(np.ones((4, 4, 4), np.int16)), place)
    said, real = getattr(errno, name), os.rename

    def fail(source, target):
        if str(source).endswith("group"):
            raise OSError(said, os.strerror(said), str(source))
        real(source, target)

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(VolumeError, match=rf"converted to .*b\.zarr: {os.strerror(said)}"):
        convert(volume, place, chunk=8, overwrite=True)
    assert (Volume(place).numpy() == 1).all()


def test_voxels_in_memory_do_not_travel_where_files_may_not_be_long(tmp_path, monkeypatch):
    """Nor could they in shared memory, whose length the limit bounds as well: it is named."""
    monkeypatch.setattr(array_source, "_CURRENT", {})
    source = Volume(np.zeros(SHAPE, np.int16))._source
    with (
        disks.longest_file(1000),
        pytest.warns(CacheUnused, match="File too large"),
        pytest.raises(VolumeReadError, match=r"128000 bytes .*File too large"),
    ):
        source.__reduce__()


def test_a_remote_file_that_a_library_opens_by_name_needs_one(tmp_path, monkeypatch):
    """Where neither disk nor memory takes it, the limit is named."""
    blosc2 = pytest.importorskip("blosc2")
    array = np.random.default_rng(0).integers(0, 999, (1, *SHAPE)).astype(np.int16)
    stored = blosc2.asarray(array, urlpath=str(tmp_path / "a.b2nd"), mode="w")
    del stored
    fsspec.filesystem("memory").pipe_file("/long/a.b2nd", (tmp_path / "a.b2nd").read_bytes())
    monkeypatch.setenv("VOXPIPE_CACHE", str(tmp_path / "cache"))
    with (
        disks.longest_file(1000),
        pytest.warns(CacheUnused, match="File too large"),
        pytest.raises(CacheTooSmall, match=r"memory://long/a\.b2nd takes .* files as long"),
    ):
        Volume("memory://long/a.b2nd").numpy()
    assert files_in(tmp_path / "cache") == []
