"""Pipes, devices and folders in the place of files are refused at once, by name."""

import errno
import os

import numpy as np
import pytest
import zarr
from nifti_files import numbered
from numcodecs import Delta

from voxpipe.core import Region
from voxpipe.core.errors import AccessDenied, BadHeader, UnknownFormat, VolumeError, VolumeReadError
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

    with pytest.raises(VolumeError, match=r"jsonl? is no regular|a\.nii\.zarr is there"):
        convert(Volume(numbered((4, 5, 6))), tmp_path / "a.nii.zarr")


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_is_no_volume(tmp_path, name):
    """Of whatever format its name speaks."""
    (tmp_path / name).mkdir()

    with pytest.raises(VolumeError, match=name):
        _ = Volume(tmp_path / name).shape


PARTS = ["zarr.json", "0/zarr.json", "0/c/0/0/0", "nifti/zarr.json", "nifti/c/0"]


@pytest.mark.parametrize("by", ["path", "URL"])
@pytest.mark.parametrize("part", PARTS)
def test_a_folder_in_the_place_of_a_file_of_a_zarr(tmp_path, part, by):
    """Of metadata, of a shard, of the header."""
    place = tmp_path / "a.nii.zarr"
    convert(Volume(numbered((4, 5, 6))), place)
    (place / part).unlink()
    (place / part).mkdir()

    with pytest.raises(BadHeader, match=f"{part} is a folder") as told:
        Volume(place if by == "path" else place.as_uri()).read(Region.of_shape((4, 5, 6)))
    assert "Put a file in its place" in str(told.value)


@pytest.mark.parametrize("filters", [None, [Delta("<i2")]])
@pytest.mark.parametrize("part", [".zarray", "0.0.0"])
def test_a_folder_in_the_place_of_a_file_of_an_older_zarr(tmp_path, part, filters):
    """Read by voxpipe, or by zarr-python."""
    place = tmp_path / "a.zarr"
    zarr.create_array(
        place, shape=(4, 4, 4), chunks=(4, 4, 4), dtype="i2", zarr_format=2, filters=filters
    )[...] = 1
    (place / part).unlink()
    (place / part).mkdir()

    with pytest.raises(BadHeader, match=f"{part} is a folder"):
        Volume(place).numpy()


def test_a_folder_in_the_place_of_a_group(tmp_path):
    """Of the older format."""
    (tmp_path / "a.zarr" / ".zgroup").mkdir(parents=True)

    with pytest.raises(BadHeader, match=r"\.zgroup is a folder"):
        _ = Volume(tmp_path / "a.zarr").shape


def test_a_folder_in_the_place_of_what_else_is_read(tmp_path):
    """Of raw voxels, of a file that was there a moment ago, of a manifest, of a journal."""
    (tmp_path / "a.mhd").write_text(
        "ObjectType = Image\nNDims = 3\nDimSize = 4 4 4\nElementType = MET_SHORT\n"
        "ElementDataFile = a.raw\n"
    )
    (tmp_path / "a.raw").mkdir()
    with pytest.raises(BadHeader, match=r"a\.raw is a folder"):
        Volume(tmp_path / "a.mhd").numpy()

    np.save(tmp_path / "late.npy", np.ones((4, 4, 4), np.int16))
    volume = Volume(tmp_path / "late.npy")
    assert volume.shape == (1, 4, 4, 4)
    close_volumes()
    (tmp_path / "late.npy").unlink()
    (tmp_path / "late.npy").mkdir()
    with pytest.raises(BadHeader, match=r"late\.npy is a folder"):
        volume.numpy()

    (tmp_path / "manifest.json").mkdir()
    with pytest.raises(BadHeader, match=r"manifest\.json is a folder"):
        read_manifest(tmp_path / "manifest.json")

    (tmp_path / ".a.nii.zarr.part" / "journal.jsonl").mkdir(parents=True)
    with pytest.raises(BadHeader, match=r"journal\.jsonl is a folder"):
        convert(Volume(numbered((4, 5, 6))), tmp_path / "a.nii.zarr")


@pytest.mark.parametrize("name", ["a.nii", "a.npy", "a.h5", "a.zarr/zarr.json", "manifest.json"])
def test_a_file_that_cannot_be_opened_is_named(tmp_path, name, monkeypatch):
    """Links in a circle, or a file of somebody else: as errors of ours."""
    place = tmp_path / name
    place.parent.mkdir(exist_ok=True)
    volume = place if place.parent == tmp_path else place.parent
    place.symlink_to(place.name)

    def read():
        return read_manifest(place) if name == "manifest.json" else Volume(volume).shape

    circle = UnknownFormat if "zarr" in name else VolumeReadError
    with pytest.raises(circle, match=f"{volume.name}.* cannot be opened|is a folder without"):
        read()

    place.unlink()
    place.write_bytes(bytes(1000))
    opened = os.open

    def denied(path, *arguments, **named):
        if str(path).endswith(name):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return opened(path, *arguments, **named)

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(AccessDenied, match=f"{name} cannot be opened: Permission denied"):
        read()
