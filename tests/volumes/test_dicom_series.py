"""A folder of DICOM slices is one volume; SimpleITK writes them."""

import sys

import numpy as np
import pytest
from medical_files import SERIES, warm, write_series
from nifti_files import numbered

from voxpipe.core.errors import MissingDependency, UnknownFormat, VolumeError
from voxpipe.volumes import Volume, find_volumes


@pytest.fixture(scope="module", autouse=True)
def writer_is_warm():
    """Nothing that GDCM keeps open counts as left behind."""
    warm()


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

    with pytest.raises(VolumeError, match=r"3 mm apart, but 6 mm from|3 at \(10, -20, 30\)"):
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


def test_a_series_below_a_folder_is_one_volume(tmp_path):
    """Its slices are not volumes of their own; what else lies beside them is."""
    series = write_series(tmp_path / "patient", numbered((7, 6, 5)))
    np.save(series / "mask.npy", np.zeros((4, 4, 4), np.uint8))

    found = find_volumes(tmp_path)

    assert found == {"patient": {"image": str(series), "mask": str(series / "mask.npy")}}


def test_without_pydicom(tmp_path, monkeypatch):
    """The message names the package."""
    folder = write_series(tmp_path / "scan", numbered((7, 6, 3)))
    monkeypatch.setitem(sys.modules, "pydicom", None)

    with pytest.raises(MissingDependency, match="DICOM"):
        _ = Volume(folder).shape


def test_hidden_files_hide_no_series(tmp_path):
    """Some systems write ``._NAME`` for each file, and these come first in the folder."""
    series = write_series(tmp_path / "patient", numbered((7, 6, 5)))
    for number in range(20):
        (series / f"._1-{number}.dcm").write_bytes(b"\0\x05\x16\x07")

    assert find_volumes(tmp_path) == {"patient": {"image": str(series)}}
    assert Volume(series).numpy()[0].tolist() == numbered((7, 6, 5)).tolist()
