"""Write one volume as NIfTI or NIfTI-Zarr, with nibabel and zarr alone.

The demo must not read what voxpipe itself has written: nothing in here comes from
``voxpipe.volumes``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .core import Affine
from .core.errors import UnknownFormat

# 64 cubed int16 voxels are 512 KiB before compression: large enough to read at once from a
# disk, small enough that a patch of 48 touches eight at most where it lies badly.
CHUNK = 64
# NIfTI's code for coordinates of the scanner that made the image.
SCANNER = 1


def write_volume(path: Path, voxels: NDArray[Any], affine: Affine) -> None:
    """Write ``voxels`` (I, J, K) in the format that the name of ``path`` asks for.

    Parameters
    ----------
    path
        Ends in ``.nii``, ``.nii.gz`` or ``.nii.zarr``; its folder exists.
    voxels
        Any type that NIfTI has.
    affine
        4x4, voxel index to world millimetres, RAS+.

    Raises
    ------
    UnknownFormat
        If the name ends otherwise.
    """
    if path.name.endswith((".nii", ".nii.gz")):
        _image(voxels, affine).to_filename(path)
    elif path.name.endswith(".nii.zarr"):
        _write_nifti_zarr(path, voxels, affine)
    else:
        raise UnknownFormat(f"cannot write {path.name}", do="Name it .nii, .nii.gz or .nii.zarr.")


def _image(voxels: NDArray[Any], affine: Affine) -> Any:
    import nibabel

    image = nibabel.Nifti1Image(voxels, affine)
    image.header.set_xyzt_units("mm")
    image.set_qform(affine, code=SCANNER)
    image.set_sform(affine, code=SCANNER)
    return image


def _write_nifti_zarr(path: Path, voxels: NDArray[Any], affine: Affine) -> None:
    """Write a group with the voxels as ``0`` (z, y, x) and the bytes of a NIfTI header."""
    import zarr

    image = _image(voxels, affine)
    image.update_header()
    header = np.frombuffer(image.header.binaryblock, dtype=np.uint8)
    spacing = [float(s) for s in image.header.get_zooms()]

    group: Any = zarr.open_group(str(path), mode="w")
    group.attrs.update(_ome_metadata(path.name, spacing))
    stored: Any = zarr.open_array(
        str(path / "0"),
        mode="w",
        shape=voxels.shape[::-1],
        chunks=tuple(min(CHUNK, n) for n in voxels.shape[::-1]),
        dtype=voxels.dtype,
        dimension_names=["z", "y", "x"],
    )
    stored[...] = voxels.T
    block: Any = zarr.open_array(
        str(path / "nifti"), mode="w", shape=header.shape, chunks=header.shape, dtype=np.uint8
    )
    block[...] = header


def _ome_metadata(name: str, spacing: list[float]) -> dict[str, Any]:
    """Return the attributes that make the group an OME-Zarr image of one level."""
    scale = {"type": "scale", "scale": spacing[::-1]}
    image = {
        "name": name,
        "axes": [{"name": axis, "type": "space", "unit": "millimeter"} for axis in "zyx"],
        "datasets": [{"path": "0", "coordinateTransformations": [scale]}],
    }
    return {"ome": {"version": "0.5", "multiscales": [image]}}
