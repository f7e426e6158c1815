"""Pipes and devices in the place of files are refused at once: nobody waits for a writer."""

import os

import numpy as np
import pytest
from nifti_files import numbered

from voxpipe.core import Region
from voxpipe.core.errors import VolumeError
from voxpipe.volumes import Volume, close_volumes, convert, read_manifest

NAMES = [
    "a.nii",
    "a.nii.gz",
    "a.hdr",
    "a.npy",
    "a.nrrd",
    "a.mha",
    "a.mgz",
    "a.h5",
    "a.tif",
    "a.b2nd",
    "a.zarr.zip",
    "a.png",
]


@pytest.fixture(autouse=True)
def closed():
    yield
    close_volumes()


@pytest.mark.parametrize("name", NAMES)
def test_a_pipe_is_no_volume(tmp_path, name):
    """Of whatever format its name speaks."""
    os.mkfifo(tmp_path / name)

    with pytest.raises(VolumeError, match=name):
        _ = Volume(tmp_path / name).shape


def test_a_device_is_no_volume(tmp_path):
    """One that gives bytes without an end."""
    for name in NAMES:
        (tmp_path / name).symlink_to("/dev/zero")

        with pytest.raises(VolumeError, match=name):
            _ = Volume(tmp_path / name).shape


def test_a_pipe_in_the_place_of_raw_voxels(tmp_path):
    """The header is sound, and its file of voxels is none."""
    (tmp_path / "a.mhd").write_text(
        "ObjectType = Image\nNDims = 3\nDimSize = 4 4 4\nElementType = MET_SHORT\n"
        "ElementDataFile = a.raw\n"
    )
    os.mkfifo(tmp_path / "a.raw")

    with pytest.raises(VolumeError, match=r"a\.raw"):
        Volume(tmp_path / "a.mhd").numpy()


@pytest.mark.parametrize("part", ["zarr.json", "0/zarr.json", "0/c/0/0/0", "nifti/c/0"])
def test_a_pipe_in_a_zarr_folder(tmp_path, part):
    """In the place of metadata, of a shard, of the header."""
    pytest.importorskip("zarr")
    convert(Volume(numbered((4, 5, 6))), tmp_path / "a.nii.zarr")
    (tmp_path / "a.nii.zarr" / part).unlink()
    os.mkfifo(tmp_path / "a.nii.zarr" / part)

    with pytest.raises(VolumeError, match=part):
        Volume(tmp_path / "a.nii.zarr").read(Region.of_shape((4, 5, 6)))


def test_a_pipe_in_the_place_of_a_mat(tmp_path):
    """Which moves an Analyze image, and is read by others."""
    pytest.importorskip("scipy")
    nibabel = pytest.importorskip("nibabel")
    image = nibabel.Spm99AnalyzeImage(np.zeros((4, 4, 4), np.int16), np.eye(4))
    nibabel.save(image, tmp_path / "a.img")
    (tmp_path / "a.mat").unlink(missing_ok=True)
    os.mkfifo(tmp_path / "a.mat")

    with pytest.raises(VolumeError, match=r"a\.mat"):
        _ = Volume(tmp_path / "a.hdr").affine


def test_a_mat_that_is_no_matrix(tmp_path):
    """One of many megabytes holds something else: it is not read."""
    nibabel = pytest.importorskip("nibabel")
    image = nibabel.Spm99AnalyzeImage(np.zeros((4, 4, 4), np.int16), np.eye(4))
    nibabel.save(image, tmp_path / "a.img")
    (tmp_path / "a.mat").write_bytes(bytes(100_000))

    with pytest.raises(VolumeError, match=r"a\.mat takes 100000 bytes"):
        _ = Volume(tmp_path / "a.hdr").affine


def test_a_pipe_in_the_place_of_a_manifest(tmp_path):
    """Nobody would ever write into it."""
    os.mkfifo(tmp_path / "manifest.json")

    with pytest.raises(VolumeError, match=r"manifest\.json is no regular file"):
        read_manifest(tmp_path / "manifest.json")


@pytest.mark.parametrize("file", [".a.nii.zarr.part/journal.jsonl", "a.nii.zarr/zarr.json"])
def test_a_pipe_where_a_conversion_looks(tmp_path, file):
    """In the journal of an earlier one, or in what it is to replace."""
    pytest.importorskip("zarr")
    path = tmp_path / file
    path.parent.mkdir(parents=True)
    os.mkfifo(path)

    with pytest.raises(VolumeError, match=r"journal\.jsonl is no regular|a\.nii\.zarr is there"):
        convert(Volume(numbered((4, 5, 6))), tmp_path / "a.nii.zarr")
