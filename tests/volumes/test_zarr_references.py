"""NIfTI-Zarr and OME-Zarr as nifti-zarr and ome-zarr write them (tests/data/make_references.py)."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from voxpipe.testing import StoreCase, StoreContract
from voxpipe.volumes import Volume

# Movies are opened whole: the warning has tests of its own.
pytestmark = pytest.mark.filterwarnings("ignore:times-and-channels")

DATA = Path(__file__).parents[1] / "data"
VERSIONS = [2, 3]
SFORM = np.array([[0, -2, 0, 10], [1.5, 0, 0, -20], [0, 0, -3, 30], [0, 0, 0, 1.0]])
NIFTI = (np.arange(8 * 10 * 12).reshape(1, 8, 10, 12) * 0.5 - 3).astype(np.float32)
OME = np.arange(2 * 2 * 3 * 8 * 8, dtype=np.uint16).reshape(4, 3, 8, 8).transpose(0, 3, 2, 1)
MICRO = np.diag([0.00025, 0.0005, 0.002, 1.0])


def unpacked(name, folder):
    """Return the folder of an archive."""
    with zipfile.ZipFile(DATA / f"{name}.zip") as archive:
        archive.extractall(folder / name)
    return folder / name


class TestNiftiZarr(StoreContract):
    """Header with an extension (608 and 800 bytes), slope, no qform."""

    @pytest.fixture(params=VERSIONS)
    def case(self, tmp_path, request):
        path = unpacked(f"nifti-{request.param}.nii.zarr", tmp_path)
        assert Volume(path).disk_dtype == np.int16
        return StoreCase(path, NIFTI, SFORM)


class TestZippedNiftiZarr(StoreContract):
    @pytest.fixture(params=VERSIONS)
    def case(self, request):
        return StoreCase(DATA / f"nifti-{request.param}.nii.zarr.zip", NIFTI, SFORM)


class TestOmeZarr(StoreContract):
    @pytest.fixture(params=VERSIONS)
    def case(self, tmp_path, request):
        return StoreCase(unpacked(f"ome-{request.param}.ome.zarr", tmp_path), OME, MICRO)


class TestOmeLabels(StoreContract):
    @pytest.fixture(params=VERSIONS)
    def case(self, tmp_path, request):
        path = unpacked(f"ome-{request.param}.ome.zarr", tmp_path) / "labels" / "organs"
        return StoreCase(path, OME[:1] % 5, MICRO)


class TestOmeStore(StoreContract):
    """The same group through a store of zarr-python."""

    @pytest.fixture(params=VERSIONS)
    def case(self, tmp_path, request):
        zarr = pytest.importorskip("zarr")
        path = unpacked(f"ome-{request.param}.ome.zarr", tmp_path)
        return StoreCase(zarr.storage.LocalStore(path, read_only=True), OME, MICRO)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_header_is_as_long_as_promised(tmp_path, version):
    """An extension follows the 348 or 540 bytes of the header, and is no voxel."""
    path = unpacked(f"nifti-{version}.nii.zarr", tmp_path)

    header = Volume(path / "nifti", reader=lambda place: read_bytes(place)).numpy()

    assert header.size > (348 if version == 2 else 540) + 4


def read_bytes(place):
    """Return the bytes of a header as a volume of one row."""
    import zarr

    return np.asarray(zarr.open_array(place, mode="r")[...])[None, None]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(("name", "fine"), [("nifti-{}.nii", SFORM), ("ome-{}.ome", MICRO)])
def test_coarser_levels_cover_the_same_place(version, name, fine):
    """The centre of a coarse voxel lies in the middle of those that it stands for."""
    path = DATA / f"{name.format(version)}.zarr.zip"
    volume, coarse = Volume(path), Volume(path, level=1)
    factors = np.array(volume.spatial_shape) / coarse.spatial_shape
    step = np.diag([*factors, 1.0])
    step[:3, 3] = (factors - 1) / 2

    assert sorted(set(factors)) in ([2.0], [1.0, 2.0])
    np.testing.assert_allclose(coarse.affine, fine @ step, atol=1e-12)
