"""A folder of DICOM slices as one volume, through SimpleITK (GDCM).

Headers alone say where the slices lie: they must be parallel, evenly spaced and of one
size. The voxels are decoded once, slice by slice.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import BinaryIO

import numpy as np

from ...core import IO_COUNTERS
from ...core.errors import BadHeader, MissingDependency, UnknownFormat, VolumeChanged
from ..backend import Backend
from ..header import affine_entries, affine_matrix
from ..registry import BackendRequest
from .itk import check_claims, check_ratio, header_of, is_installed, planes_of, simpleitk
from .raw import LocalRaw, RawHeader
from .stored_file import Format, LocalStoredFile, open_local

_MAGIC, _MAGIC_AT = b"DICM", 128
# Series lie among other files; one of so many tells.
_LOOKED_AT = 16
# Of the distance between slices. Positions are decimal text of up to 16 letters.
_UNEVEN = 1e-2


def _has_dicom(request: BackendRequest) -> bool:
    """Whether one of the first files of a local folder is DICOM."""
    if request.path is None or not os.path.isdir(request.path):
        return False
    return any(map(_is_dicom, _files(os.fspath(request.path))[:_LOOKED_AT]))


def _files(folder: str) -> list[str]:
    # Copies from macOS bring a hidden ._NAME for each file, and these come first.
    with os.scandir(folder) as entries:
        # isfile() is false, and raises nothing, for links that lead in a circle.
        return sorted(
            entry.path
            for entry in entries
            if not entry.name.startswith(".") and os.path.isfile(entry.path)
        )


def _is_dicom(path: str) -> bool:
    with open_local(path) as file:
        return file.read(_MAGIC_AT + len(_MAGIC))[_MAGIC_AT:] == _MAGIC


def open_series(request: BackendRequest, name: str, series: str = "") -> Backend:
    """Open the slices of one series, whose UID may be left out where there is no other.

    ``UnknownFormat`` if it is not there, ``BadHeader`` if the slices do not make up a volume.
    """
    folder = os.fspath(request.path or "")
    if not is_installed():
        raise MissingDependency(
            f"{name} is a folder of DICOM files.", do="pip install SimpleITK, which reads them."
        )
    paths = _slices(folder, name, series)
    headers = [header_of(path, f"{path} (of {name})") for path in paths]
    fields = _stacked(headers, name)
    files = [LocalStoredFile(path, f"{path} (of {name})") for path in paths]
    for file, one in zip(files, headers, strict=True):
        check_ratio(file, one.voxel_bytes)

    def write(raw: BinaryIO) -> None:
        for file in files:
            if not file.is_current:
                raise VolumeChanged(
                    f"{file.name} was written again since its header was read.",
                    do="Make a new Volume once the files are written.",
                )
            raw.write(planes_of(file.path, file.name, headers[0]).data)

    IO_COUNTERS.count(headers=len(paths))
    return LocalRaw(fields, files, name, write)


def _slices(folder: str, name: str, series: str) -> Sequence[str]:
    """Return the files of a series in the order of their places."""
    _refuse_hostile(folder, name)
    itk = simpleitk()
    itk.ProcessObject.SetGlobalWarningDisplay(False)
    found: tuple[str, ...] = itk.ImageSeriesReader.GetGDCMSeriesIDs(folder)
    if series not in found and (series or len(found) != 1):
        raise UnknownFormat(
            f"{name} holds {len(found)} DICOM series ({', '.join(found)})"
            + (f", and not {series}." if series else "."),
            do="Give the one to read as series=.",
        )
    _refuse_orphans(folder, found, name)
    paths: tuple[str, ...] = itk.ImageSeriesReader.GetGDCMSeriesFileNames(
        folder, series or found[0]
    )
    return paths


def _refuse_hostile(folder: str, name: str) -> None:
    """Look at all files before GDCM does: it reads whatever is there, pipes and claims of any size.

    Files of other kinds that lie among the slices are no harm.
    """
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if not entry.is_dir():
            check_claims(entry.path, f"{entry.path} (of {name})")


def _refuse_orphans(folder: str, found: Sequence[str], name: str) -> None:
    """Refuse a folder with slices that GDCM cannot read: it leaves them out without a word."""
    itk = simpleitk()
    read = {
        os.path.realpath(path)
        for series in found
        for path in itk.ImageSeriesReader.GetGDCMSeriesFileNames(folder, series)
    }
    for path in _files(folder):
        is_slice = path.lower().endswith(".dcm") or _is_dicom(path)
        is_index = os.path.basename(path).upper() == "DICOMDIR"
        if is_slice and not is_index and os.path.realpath(path) not in read:
            raise BadHeader(
                f"{path} (of {name}) is a DICOM file of no series that SimpleITK recognises.",
                do="Copy it again if it is damaged, or move it out of the folder.",
            )


def _stacked(slices: Sequence[RawHeader], name: str) -> RawHeader:
    """Return the header of slices that lie one behind the other."""
    first = slices[0]
    depth = first.shape[first.axes[2]]
    if len(slices) == 1:
        return first
    affines = [affine_matrix(fields.affine) for fields in slices]
    for fields, affine in zip(slices, affines, strict=True):
        same = (fields.shape, fields.dtype) == (first.shape, first.dtype)
        if not same or not np.allclose(affine[:3, :3], affines[0][:3, :3], atol=1e-4) or depth > 1:
            raise BadHeader(
                f"the slices of {name} differ in size, type or direction, or are volumes.",
                do="Give one file of it, or convert the series to .nii.",
            )
    places = np.array([affine[:3, 3] for affine in affines])
    step = (places[-1] - places[0]) / (len(slices) - 1)
    distance = float(np.linalg.norm(step))
    away = np.abs(places - places[0] - np.arange(len(slices))[:, None] * step).max()
    if distance == 0 or away > _UNEVEN * distance:
        raise BadHeader(
            f"the {len(slices)} slices of {name} are not evenly spaced: {away:g} mm off a "
            f"distance of {distance:g} mm.",
            do="Look for missing or doubled slices.",
        )
    affine = affines[0].copy()
    affine[:3, 2] = step
    shape = list(first.shape)
    shape[first.axes[2]] = len(slices)
    return replace(first, shape=tuple(shape), affine=affine_entries(affine, name))


FORMATS = (Format("dicom", (), open_series, ("series",), matches=_has_dicom, rank=1),)
