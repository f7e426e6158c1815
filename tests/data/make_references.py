"""Write the archives in this folder with nifti-zarr and ome-zarr, which the tests do not install.

    pip install nifti-zarr==1.0.0rc8 ome-zarr==0.18.0
    python tests/data/make_references.py

nifti-zarr writes a NIfTI-1 and a NIfTI-2 image with an extension, as zarr v2 (OME-Zarr 0.4) and
v3 (0.5), each with two levels; ome-zarr an image of t, c, z, y, x with a label beside it. Voxels
count up, so that the tests know them.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import nibabel
import niizarr
import numpy as np
import zarr
from ome_zarr.format import FormatV04, FormatV05
from ome_zarr.writer import write_image, write_labels

HERE = Path(__file__).parent
AFFINE = np.array([[0, -2, 0, 10], [1.5, 0, 0, -20], [0, 0, -3, 30], [0, 0, 0, 1.0]])


def nifti(version: int, folder: Path) -> Path:
    """Write with nifti-zarr; the header says slope 0.5, intercept -3 and no qform."""
    kind = nibabel.Nifti1Image if version == 2 else nibabel.Nifti2Image
    image = kind(np.arange(8 * 10 * 12, dtype=np.int16).reshape(8, 10, 12), None)
    image.set_sform(AFFINE, 1)
    image.set_qform(None, 0)
    image.header.set_slope_inter(0.5, -3)
    image.header.extensions.append(nibabel.nifti1.Nifti1Extension("comment", b"longer" * 40))
    path = folder / f"nifti-{version}.nii.zarr"
    niizarr.nii2zarr(image, str(path), chunk=8, nb_levels=2, zarr_version=version)
    return path


def ome(version: int, folder: Path) -> Path:
    """Write with ome-zarr: scale in micrometres, two levels, labels of z, y, x."""
    form = FormatV04() if version == 2 else FormatV05()
    path = folder / f"ome-{version}.ome.zarr"
    group = zarr.open_group(str(path), mode="w", zarr_format=version)
    image = np.arange(2 * 2 * 3 * 8 * 8, dtype=np.uint16).reshape(2, 2, 3, 8, 8)
    spacing = {"z": 2.0, "y": 0.5, "x": 0.25}
    how = {
        "scale_factors": [{"y": 2, "x": 2}],
        "axes_units": dict.fromkeys("zyx", "micrometer"),
        "fmt": form,
    }
    write_image(image, group, axes="tczyx", scale={"t": 1.0, "c": 1.0} | spacing, **how)
    write_labels(image[0, 0] % 5, group, "organs", axes="zyx", scale=spacing, **how)
    return path


def main() -> None:
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        for version in (2, 3):
            for made in (nifti(version, Path(name)), ome(version, Path(name))):
                packed = shutil.make_archive(str(HERE / made.name), "zip", made)
                sys.stdout.write(f"{Path(packed).name} {Path(packed).stat().st_size}\n")


if __name__ == "__main__":
    main()
