"""A tree of DICOM files is a case for each series."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from medical_files import SERIES, warm, write_series
from nifti_files import numbered

import voxpipe as vp
from voxpipe.core.errors import VolumeNotFound


@pytest.fixture(scope="module", autouse=True)
def writer_is_warm() -> None:
    """Nothing that GDCM keeps open counts as left behind."""
    warm()


def test_series_of_a_study_tree(tmp_path: Path) -> None:
    """Grouped by their UIDs, in one folder or in several, beside files of other kinds."""
    other = SERIES[:-1] + "3"
    (tmp_path / "anna").mkdir()
    mixed = write_series(tmp_path / "anna" / "ct", numbered((7, 6, 5)))
    write_series(mixed, numbered((4, 6, 3)), series=other)
    write_series(tmp_path / "bert", numbered((5, 6, 4)))
    (tmp_path / "notes.txt").write_text("nothing")

    samples = {sample.case: sample for sample in vp.from_dicom(tmp_path)}
    opened = {sample.case: sample["image"] for sample in vp.from_dicom(tmp_path).open_volume()}

    assert sorted(samples) == [f"anna/ct/{SERIES}", f"anna/ct/{other}", "bert"]
    assert samples["bert"]["dicom"]["modality"] == "CT"
    assert samples["bert"]["dicom"]["series"] == SERIES
    assert opened["bert"].shape == (1, 5, 6, 4)
    assert np.array_equal(opened[f"anna/ct/{other}"].realize()[0], numbered((4, 6, 3)))


def test_a_tree_without_series(tmp_path: Path) -> None:
    """Says so."""
    (tmp_path / "a.txt").write_text("x")
    with pytest.raises(VolumeNotFound, match="no DICOM series below"):
        vp.from_dicom(tmp_path)
