"""Cases for the programs of the pages."""

import nibabel
import numpy as np
import pytest


@pytest.fixture(scope="module")
def scans(tmp_path_factory):
    """Return a folder with ``scans/p1/ct.nii.gz`` and ``seg.nii.gz`` of four cases."""
    folder = tmp_path_factory.mktemp("pages")
    rng = np.random.default_rng(1)
    for number in range(1, 5):
        case = folder / "scans" / f"p{number}"
        case.mkdir(parents=True)
        label = np.zeros((40, 36, 32), np.uint8)
        label[10:20, 12:24, 8:16] = 1
        scan = (label * 300.0 + rng.normal(0, 50, label.shape)).astype(np.int16)
        affine = np.diag([1.0, 1.0, 1.5, 1.0])
        nibabel.save(nibabel.Nifti1Image(scan, affine), case / "ct.nii.gz")
        nibabel.save(nibabel.Nifti1Image(label, affine), case / "seg.nii.gz")
    return folder
