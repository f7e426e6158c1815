"""A folder of DICOM slices is one volume, decoded by SimpleITK."""

import sys

import numpy as np
import pytest
import SimpleITK
from nifti_files import numbered

from voxpipe.core.errors import BadHeader, MissingDependency, UnknownFormat, VolumeError
from voxpipe.testing import StoreCase, StoreContract
from voxpipe.volumes import Volume

AFFINE = np.array([[-1.5, 0, 0, -10], [0, -2.0, 0, 20], [0, 0, 3.0, 30], [0, 0, 0, 1]])
SERIES = "1.2.826.0.1.3680043.2.1125.1"


def write_series(folder, array, series=SERIES, heights=None):
    """Write slices along K with SimpleITK; their names say nothing about their order."""
    folder.mkdir(exist_ok=True)
    writer = SimpleITK.ImageFileWriter()
    writer.KeepOriginalImageUIDOn()
    for k in range(array.shape[2]):
        image = SimpleITK.GetImageFromArray(np.ascontiguousarray(array[:, :, k : k + 1].T))
        image.SetSpacing((1.5, 2, 3))
        height = 30 + 3 * k if heights is None else heights[k]
        fields = {
            "0008|0018": f"{series}.{k}",
            "0008|0060": "CT",
            "0018|0050": "3",
            "0020|000d": "1.2.826.0.1.3680043.2.1125.2",
            "0020|000e": series,
            "0020|0013": str(k),
            "0020|0032": f"10\\-20\\{height}",
            "0020|0037": "1\\0\\0\\0\\1\\0",
        }
        for key, value in fields.items():
            image.SetMetaData(key, value)
        writer.SetFileName(str(folder / f"{series[-1]}-{9 - k}.dcm"))
        writer.Execute(image)
    return folder


@pytest.fixture(scope="module", autouse=True)
def writer_is_warm(tmp_path_factory):
    """Let GDCM open its source of random identifiers, which it keeps, before tests look."""
    write_series(tmp_path_factory.mktemp("warm"), numbered((2, 2, 1)))


class TestDicomSeries(StoreContract):
    @pytest.fixture
    def case(self, tmp_path):
        array = numbered((7, 6, 5))
        return StoreCase(write_series(tmp_path / "scan", array), array[None], AFFINE)


def test_one_of_several_series(tmp_path):
    """Where there are several, the message lists them and the option chooses."""
    other = SERIES[:-1] + "3"
    folder = write_series(tmp_path / "scan", numbered((7, 6, 5)))
    write_series(folder, numbered((4, 6, 3)), series=other)

    with pytest.raises(UnknownFormat, match=SERIES):
        _ = Volume(folder).shape
    with pytest.raises(UnknownFormat, match="not 9"):
        _ = Volume(folder, series="9").shape
    assert Volume(folder, series=other).numpy()[0].tolist() == numbered((4, 6, 3)).tolist()


@pytest.mark.parametrize("heights", [(30, 33, 39), (30, 30, 30)])
def test_a_missing_slice_is_noticed(tmp_path, heights):
    """Slices at uneven places make no volume."""
    folder = write_series(tmp_path / "scan", numbered((7, 6, 3)), heights=heights)

    with pytest.raises(BadHeader, match="evenly spaced"):
        _ = Volume(folder).shape


def test_slices_that_differ(tmp_path):
    """A slice of another size makes no volume."""
    folder = write_series(tmp_path / "scan", numbered((7, 6, 3)))
    spare = write_series(tmp_path / "spare", numbered((7, 8, 3)))
    (folder / "1-8.dcm").write_bytes((spare / "1-8.dcm").read_bytes())

    with pytest.raises(VolumeError, match="scan"):
        _ = Volume(folder).shape


def test_cut_slices(tmp_path):
    """A slice that ends early is refused by name."""
    folder = write_series(tmp_path / "scan", numbered((7, 6, 3)))
    content = (folder / "1-8.dcm").read_bytes()
    for length in np.linspace(0, len(content) - 1, 30).astype(int):
        (folder / "1-8.dcm").write_bytes(content[:length])

        with pytest.raises(VolumeError, match="scan"):
            Volume(folder).numpy()


def test_without_simpleitk(tmp_path, monkeypatch):
    """The message names the package."""
    folder = write_series(tmp_path / "scan", numbered((7, 6, 3)))
    monkeypatch.setitem(sys.modules, "SimpleITK", None)

    with pytest.raises(MissingDependency, match="DICOM"):
        _ = Volume(folder).shape
