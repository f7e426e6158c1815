"""Bad files: each is one error that names the file, the case, and the line of the user's chain."""

import gzip

import nibabel
import numpy as np
import pytest

import voxpipe as vp
from voxpipe.core import errors


def good(path):
    voxels = np.arange(6 * 6 * 6, dtype=np.int16).reshape(6, 6, 6)
    nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), path)
    return path.read_bytes()


def missing(folder):
    return folder / "scan.nii"


def truncated_header(folder):
    path = folder / "scan.nii"
    path.write_bytes(good(path)[:100])
    return path


def garbage_header(folder):
    path = folder / "scan.nii"
    path.write_bytes(b"\x07garbage" * 200)
    return path


def truncated_voxels(folder):
    path = folder / "scan.nii"
    path.write_bytes(good(path)[:-50])
    return path


def truncated_gz(folder):
    path = folder / "scan.nii.gz"
    good(path)
    path.write_bytes(path.read_bytes()[:-40])
    return path


def not_gzip(folder):
    path = folder / "scan.nii.gz"
    path.write_bytes(good(folder / "other.nii"))
    return path


def gz_with_fewer_voxels(folder):
    path = folder / "scan.nii.gz"
    path.write_bytes(gzip.compress(good(folder / "other.nii")[:-50]))
    return path


def unknown_suffix(folder):
    path = folder / "scan.xyz"
    path.write_bytes(b"PK")
    return path


def complex_voxels(folder):
    path = folder / "scan.nii"
    nibabel.save(nibabel.Nifti1Image(np.ones((6, 6, 6), np.complex64), np.eye(4)), path)
    return path


def detached_without_voxels(folder):
    path = folder / "scan.mhd"
    path.write_text(
        "NDims = 3\nDimSize = 6 6 6\nElementType = MET_UCHAR\nElementDataFile = a.raw\n"
    )
    return path


def folder_without_zarr(folder):
    path = folder / "scan.zarr"
    path.mkdir()
    return path


CASES = {
    missing: (errors.VolumeNotFound, ""),
    truncated_header: (errors.VolumeError, "348"),
    garbage_header: (errors.BadHeader, ""),
    truncated_voxels: (errors.TruncatedVolume, "734"),  # of 352 + 432 bytes
    truncated_gz: (errors.TruncatedVolume, ""),
    not_gzip: (errors.VolumeError, "gzip"),
    gz_with_fewer_voxels: (errors.TruncatedVolume, ""),
    unknown_suffix: (errors.UnknownFormat, ".nii.gz"),
    complex_voxels: (errors.UnknownFormat, "complex"),
    detached_without_voxels: (errors.VolumeNotFound, "a.raw"),
    folder_without_zarr: (errors.VolumeError, "zarr"),
}


def run(path, workers):
    pipe = vp.from_cases([{"case": "patient7", "image": str(path)}]).open_volume()
    pipe = pipe.lazy_patch(4).rotate((-9, 9)).batch_patches(1)
    service = vp.MultiProcessingReadingService(workers)
    with vp.DataLoader2(pipe, None, service, seed=7) as loader:
        list(loader)


@pytest.mark.parametrize("make", list(CASES), ids=lambda make: make.__name__)
def test_a_bad_file_is_one_readable_error(make, tmp_path):
    """The class is the built-in a caller expects; file, case and line are named."""
    path = make(tmp_path)
    kind, told = CASES[make]

    with pytest.raises(kind) as e:
        run(path, workers=0)

    text = str(e.value)
    assert path.name in text
    assert "\n  in case patient7, under 'image'\n" in text
    assert "test_bad_input.py:" in text
    assert told in text
    assert e.value.do, "says what to do"


def test_an_unknown_suffix_lists_what_there_is(tmp_path):
    """The error names the formats that can be opened, and what would have to be installed."""
    with pytest.raises(errors.UnknownFormat) as e:
        run(unknown_suffix(tmp_path), workers=0)

    text = str(e.value)
    for suffix in (".nii", ".nii.gz", ".zarr", ".npy"):
        assert suffix in text
    assert "install" in text


def test_the_error_is_the_same_from_a_worker(tmp_path):
    """From a worker the same class and text arrive, with the worker's traceback as cause."""
    path = truncated_voxels(tmp_path)

    with pytest.raises(errors.TruncatedVolume) as here:
        run(path, workers=0)
    with pytest.raises(errors.TruncatedVolume) as there:
        run(path, workers=1)

    def without_lines(text):
        return [line for line in text.splitlines() if "test_bad_input" not in line]

    assert without_lines(str(here.value)) == without_lines(str(there.value))
    assert "read" in str(there.value.__cause__)
