"""Mapped files do not fill the process with their pages."""

import gc
import mmap
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from nifti_files import write_nifti

from voxpipe.core import Region
from voxpipe.core.errors import BadSetting
from voxpipe.volumes import Volume, close_volumes
from voxpipe.volumes.formats import stored_file as mapped
from voxpipe.volumes.formats.stored_file import Maps

MIB = 2**20
# Slabs of 2 MiB along the slowest axis, contiguous in the file; 32 MiB in all.
SLABS, SLAB_SHAPE = 16, (1024, 1024)


def resident(path):
    """Return how many bytes of a file are mapped into this process and resident."""
    size, inside = 0, False
    with open("/proc/self/smaps", encoding="utf-8") as lines:
        for line in lines:
            if "-" in line.split(maxsplit=1)[0]:
                inside = line.rstrip().endswith(str(path))
            elif inside and line.startswith("Rss:"):
                size += int(line.split()[1]) * 1024
    return size


def write_npy(path, array):
    np.save(path, np.asfortranarray(array))
    return path


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
@pytest.mark.parametrize(("suffix", "write"), [(".nii", write_nifti), (".npy", write_npy)])
def test_pages_of_a_mapped_file_are_let_go_of(tmp_path, monkeypatch, suffix, write):
    """Reading a whole file part by part keeps a part of it resident, and reads it right."""
    monkeypatch.setattr(mapped.MAPS, "most", 4 * MIB)
    monkeypatch.setattr(mapped.MAPS, "_more", 0)  # others may have read files in threads
    array = np.empty((*SLAB_SHAPE, SLABS), np.int16)
    array[:] = np.arange(SLABS)
    path = tmp_path / f"a{suffix}"
    write(path, array)
    volume, most, sums = Volume(path), 0, []

    for k in range(SLABS):
        voxels = volume.read(Region((0, 0, k), (*SLAB_SHAPE, k + 1))).array
        sums.append(int(voxels.max()))
        most = max(most, resident(path))
    del voxels
    close_volumes()

    assert sums == list(range(SLABS))
    # 4 MiB that may stay, one slab, and 2 MiB that the kernel may map on either side of it.
    assert 0 < most <= 10 * MIB


@pytest.fixture
def pair(tmp_path):
    """Maps of which 4 pages may stay, and two mapped files of 64 pages."""
    maps, both = Maps(most=4 * mmap.PAGESIZE), []
    for name in ("one", "other"):
        path = tmp_path / name
        np.arange(64 * mmap.PAGESIZE // 4, dtype=np.int32).tofile(path)
        with open(path, "rb") as file:
            both.append(maps.add(file))
    yield maps, *both
    for file_map in both:
        file_map.close()


def touch_pages(maps, file_map, first, last):
    """Say that pages are going to be read, and read them."""
    step = mmap.PAGESIZE
    maps.touch(file_map, (last - first) * step, first * step, last * step)
    return np.frombuffer(file_map, np.int32)[first * step // 4 : last * step // 4].copy()


def sizes(maps):
    """Return how many pages are counted of maps that have any, what was read last at the end."""
    return [each.size / mmap.PAGESIZE for each in maps._resident if each.size]


def test_pages_that_the_next_read_shares_stay(pair):
    """Of one file only what lies beside the present read is let go of; views show the same."""
    maps, one, _ = pair

    first = touch_pages(maps, one, 0, 3)
    assert sizes(maps)[-1] == 3
    second = touch_pages(maps, one, 2, 5)

    # Beside these three lay two others, which are more than may stay together.
    assert sizes(maps)[-1] == 3
    assert first.tolist() == list(range(3 * mmap.PAGESIZE // 4))
    assert second.tolist() == list(range(2 * mmap.PAGESIZE // 4, 5 * mmap.PAGESIZE // 4))


def test_the_file_that_was_left_goes_first(pair):
    """The one that was read longest ago is let go of, and no more than there is need for."""
    maps, one, other = pair

    touch_pages(maps, one, 0, 2)
    touch_pages(maps, other, 0, 2)
    assert sizes(maps) == [2, 2]  # no more than may stay
    touch_pages(maps, one, 0, 2)
    touch_pages(maps, other, 8, 11)

    assert sizes(maps) == [3]


def test_a_read_larger_than_the_limit_keeps_its_own_pages_only(pair):
    """What is going to be read stays, however much it is; where nobody knows it, all goes."""
    maps, one, other = pair
    touch_pages(maps, other, 0, 2)

    touch_pages(maps, one, 0, 32)
    assert sizes(maps) == [32]
    maps.touch(one, 6 * mmap.PAGESIZE)

    assert sizes(maps) == [6]


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_what_lies_beside_the_present_read_is_let_go_of(tmp_path):
    """Pages of the earlier read that this one does not need are no longer resident."""
    path, maps = tmp_path / "numbers", Maps(most=MIB)
    np.zeros(32 * MIB, np.uint8).tofile(path)
    with open(path, "rb") as file:
        file_map = maps.add(file)
    view = np.frombuffer(file_map, np.uint8)

    for first in (0, 8 * MIB, 16 * MIB):
        maps.touch(file_map, 4 * MIB, first, first + 4 * MIB)
        assert view[first : first + 4 * MIB].max() == 0

    left = resident(path)
    del view
    file_map.close()
    # 4 MiB, and 2 MiB that the kernel may map on either side of them.
    assert 4 * MIB <= left <= 8 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_what_another_thread_maps_again_does_not_stay(tmp_path):
    """A file is let go of while somebody else reads it: at a later read it is again."""
    maps, both = Maps(most=MIB), []
    for name in ("left", "read"):
        np.zeros(16 * MIB, np.uint8).tofile(tmp_path / name)
        with open(tmp_path / name, "rb") as file:
            both.append(maps.add(file))
    left, view = both[0], np.frombuffer(both[0], np.uint8)

    maps.touch(left, 4 * MIB, 0, 4 * MIB)
    maps.touch(both[1], 4 * MIB, 0, 4 * MIB)
    assert view[: 4 * MIB].max() == 0  # what the other thread was about to read
    assert resident(tmp_path / "left") >= 4 * MIB
    maps.touch(both[1], 4 * MIB, 4 * MIB, 8 * MIB)
    assert resident(tmp_path / "left") == 0

    del view
    for file_map in both:
        file_map.close()


@pytest.mark.parametrize(("setting", "stay"), [("", [20, 8]), ("25165824", [8])])
def test_each_further_thread_has_some_more(tmp_path, monkeypatch, setting, stay):
    """Of 24 MiB that one thread may keep, and 8 of another; together what the user says."""
    monkeypatch.setenv("VOXPIPE_MAPPED_BYTES", setting)
    maps, both = Maps(), []
    for name in ("one", "other"):
        (tmp_path / name).write_bytes(bytes(32 * MIB))
        with open(tmp_path / name, "rb") as file:
            both.append(maps.add(file))
    maps.touch(both[0], 20 * MIB)
    other = threading.Thread(target=maps.touch, args=(both[1], 8 * MIB))
    other.start()
    other.join()

    left = [one.size / MIB for one in maps._resident if one.size]
    for file_map in both:
        file_map.close()
    assert left == stay


def test_the_limit_is_what_the_environment_says(monkeypatch):
    """A number of bytes, 24 MiB without it."""
    monkeypatch.delenv("VOXPIPE_MAPPED_BYTES", raising=False)
    assert Maps().most == 24 * MIB

    monkeypatch.setenv("VOXPIPE_MAPPED_BYTES", "1000")
    assert Maps().most == 1000

    monkeypatch.setenv("VOXPIPE_MAPPED_BYTES", "-1")
    with pytest.raises(BadSetting, match="VOXPIPE_MAPPED_BYTES is '-1'"):
        Maps().most  # noqa: B018


def test_headers_of_npy_are_read_in_several_threads(tmp_path):
    """In Python 3.11 two threads that parse may fail if a garbage collection runs Python code."""
    paths = [tmp_path / f"{number}.npy" for number in range(600)]
    for path in paths:
        np.save(path, np.zeros((3, 4, 5), np.int16))
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()

    def observe(phase, info):
        sum(range(50))

    def shape_of(path):
        return Volume(path).shape

    gc.callbacks.append(observe)
    gc.set_threshold(5)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(6) as pool:
            shapes = {*pool.map(shape_of, paths)}
    finally:
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)
        gc.callbacks.remove(observe)

    assert shapes == {(1, 3, 4, 5)}
