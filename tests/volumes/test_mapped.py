"""Mapped files do not fill the process with their pages."""

import mmap
import sys

import numpy as np
import pytest
from nifti_files import write_nifti

from voxpipe.core import Region
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
    monkeypatch.setattr(mapped.MAPS, "_most", 4 * MIB)
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


def test_a_view_outlives_the_pages_that_it_looked_at(tmp_path):
    """Letting go of pages changes no value of a view that is in use."""
    path = tmp_path / "numbers"
    np.arange(4096, dtype=np.int32).tofile(path)
    answers = iter([0, 10, 0])
    maps = Maps(most=5, resident=lambda: next(answers))
    with open(path, "rb") as file:
        view = np.frombuffer(maps.add(file), np.int32)
    maps.trim()
    before = view.copy()

    maps.trim()

    assert view.tolist() == before.tolist() == list(range(4096))


@pytest.mark.parametrize(
    ("sizes", "asked"),
    [
        ([100, 104], 2),  # grew by less than 5: nothing happens
        ([100, 106, 101, 106], 4),  # let go of, asked again for the new floor, then small
        ([100, 90, 94], 3),  # the floor follows downwards
    ],
)
def test_maps_are_let_go_of_when_they_have_grown(sizes, asked, monkeypatch):
    """Growth counts, not the size: libraries are resident files too."""
    monkeypatch.setattr(mmap, "MADV_DONTNEED", 4, raising=False)
    answers = iter(sizes)
    maps = Maps(most=5, resident=lambda: next(answers))

    for _ in range(asked - (len(sizes) == 4)):
        maps.trim()

    assert list(answers) == []
