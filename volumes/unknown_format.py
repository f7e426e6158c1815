"""What to say of a file that no backend opens: what is installed, and what to install."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence

from ..core.errors import UnknownFormat
from ..storage.location import is_url

# What SimpleITK opens as soon as it is installed; the most common of many.
_ITK = (".dcm", ".gipl", ".jpeg", ".jpg", ".mnc", ".mrc", ".png", ".bmp", ".vtk")
# Packages that read what voxpipe does not read by itself.
_READERS = {
    ".mnc": "nibabel",
    ".npz": "numpy",
    ".par": "nibabel",
}
# What each format of voxpipe's own needs besides voxpipe; None for nothing.
_FORMATS = {
    ".nii": None,
    ".nii.gz": None,
    ".hdr and .img": None,
    ".nrrd": None,
    ".nhdr": None,
    ".mha": None,
    ".mhd": None,
    ".mgz": None,
    ".mgh": None,
    ".npy": None,
    ".zarr": None,
    ".tif": "tifffile",
    ".h5": "h5py",
    ".b2nd": "blosc2",
}


def unknown_format(name: str, backends: Sequence[str]) -> UnknownFormat:
    """Return the error for a file that no backend opens.

    Parameters
    ----------
    name
        Path or URL, without credentials.
    backends
        Names of the registered backends, in the order in which they were asked.

    Examples
    --------
    >>> print(unknown_format("scan.npz", ["nifti"]).what)  # doctest: +ELLIPSIS
    no backend opens scan.npz; installed: .nii, .nii.gz, ... (backends: nifti)...
    """
    suffix = os.path.splitext(name)[1].lower()
    here = [format_ for format_, needs in _FORMATS.items() if needs is None or _installed(needs)]
    missing = {needs for needs in _FORMATS.values() if needs and not _installed(needs)}
    what = (
        f"no backend opens {name}; installed: {', '.join(here)} (backends: {', '.join(backends)})"
    )
    if missing:
        what += f"; install {', '.join(sorted(missing))} for more"
    return UnknownFormat(what, do=_advice(suffix, is_url(name)))


def _advice(suffix: str, remote: bool) -> str:
    reader = "pass reader=, a function of the path that returns (voxels, affine)"
    convert = "convert the file to .nii or zarr."
    if suffix in _ITK and not _installed("SimpleITK"):
        return f"Install SimpleITK (pip install SimpleITK), which reads {suffix}, or {convert}"
    package = _READERS.get(suffix)
    if package is None:
        return f"Register a backend with register_backend(), {reader}, or {convert}"
    if remote:
        return f"Copy it to a local disk, where {package} can read it, and {reader}, or {convert}"
    if _installed(package):
        return f"{package} reads {suffix} and is installed: {reader}, or {convert}"
    return f"Install {package} (pip install {package}) and {reader}, or {convert}"


def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
