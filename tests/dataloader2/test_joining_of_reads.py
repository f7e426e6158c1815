"""The gap and the longest run of a scheme decide which ranges are read as one, in every process."""

import os
from dataclasses import replace

import nibabel
import numpy as np
import pytest

import voxpipe as vp
from voxpipe.storage import file_reader
from voxpipe.storage.file_reader import LocalRanges
from voxpipe.volumes import close_volumes
from voxpipe.volumes.formats.raw import LocalRaw
from voxpipe.volumes.formats.zarr_backend import ZarrBackend

zarr = pytest.importorskip("zarr")
SHAPE = (32, 32, 32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """One volume: as chunks of one shard, and as bare voxels."""
    folder = tmp_path_factory.mktemp("joining")
    array = np.random.default_rng(0).integers(-999, 999, SHAPE).astype(np.int16)
    zarr.create_array(folder / "a.zarr", data=array, chunks=(8, 8, 8), shards=SHAPE)
    nibabel.save(nibabel.Nifti1Image(array, np.eye(4)), folder / "a.nii")
    return folder


def counted(folder, suffix, workers, monkeypatch, log, **scheme):
    """Return the batches of an epoch, and the bytes of each request."""
    log.write_text("")
    close_volumes()
    ranges, preadv = LocalRanges.get_ranges, os.preadv

    def asked(sizes):
        with open(log, "a", encoding="utf-8") as file:
            file.writelines(f"{size}\n" for size in sizes)

    def noting(self, wanted, most=0):
        found = ranges(self, wanted, most)
        asked(len(piece) for piece in found)
        return found

    def noting_preadv(fd, buffers, offset):
        asked(len(view) for view in buffers)
        return preadv(fd, buffers, offset)

    with monkeypatch.context() as patch:
        # What is in the page cache is read chunk by chunk, by whoever decodes it.
        patch.setattr(file_reader, "_WARM_ROW", 2**62)
        patch.setattr(LocalRanges, "get_ranges", noting)
        patch.setattr(file_reader.os, "preadv", noting_preadv)
        for backend in (ZarrBackend, LocalRaw):
            patch.setattr(backend, "adjust", lambda self, agreed: replace(agreed, **scheme))
        pipe = vp.from_cases([{"image": str(folder / f"a{suffix}")}]).open_volume(io="pread")
        pipe = pipe.lazy_patch(12, samples_per_volume=4).batch_patches(2)
        service = vp.MultiProcessingReadingService(workers, "fork" if workers else None)
        with vp.DataLoader2(pipe, reading_service=service, seed=1) as loader:
            batches = [batch["image"].numpy().tobytes() for batch in loader]
    return batches, [int(line) for line in log.read_text().split()]


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("suffix", [".zarr", ".nii"])
def test_the_scheme_decides_what_is_read_as_one(folder, suffix, workers, monkeypatch, tmp_path):
    """Few long requests, many short ones: the batches are the same."""
    args = (folder, suffix, workers, monkeypatch, tmp_path / "log")
    usual, _ = counted(*args)
    together, few = counted(*args, gap=10**6, longest_run=10**7)
    apart, many = counted(*args, gap=0, longest_run=1)
    bounded, short = counted(*args, gap=10**6, longest_run=3000)

    assert usual == together == apart == bounded
    assert len(few) < len(short) < len(many)
    assert sum(few) > sum(many)
    assert max(short) <= 3000
    close_volumes()
