"""``.nii`` on a local disk: the header parsed, the voxels mapped, nothing copied."""

from __future__ import annotations

import os
from typing import Any, BinaryIO

from numpy.typing import NDArray

from ..core import TALLY
from .local_file import LocalFile, open_local, stamp_of
from .mapped import MAPS, MappedBackend
from .nifti_header import NIFTI2_BYTES, NiftiHeader, check_length, parse_nifti


class NiftiBackend(LocalFile, MappedBackend):
    """A mapped ``.nii``: a region is a strided view of the file.

    The kernel's page cache is the only memory it takes, and processes share it.
    """

    def __init__(self, path: str, name: str) -> None:
        self.path = path
        with open_local(path) as file:
            status = os.fstat(file.fileno())
            fields = parse_nifti(file.read(NIFTI2_BYTES), name)
            TALLY.count(headers=1)
            check_length(fields, status.st_size, name)
            view = mapped_view(file, fields)
        super().__init__(view, fields.header("view", stamp_of(status)), name)


def mapped_view(file: BinaryIO, fields: NiftiHeader) -> NDArray[Any]:
    """Map a raw ``.nii`` and return its voxels as (C, I, J, K); the file may then be closed."""
    return fields.view(MAPS.add(file))
