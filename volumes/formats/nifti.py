"""NIfTI-1 and -2 as one file (``.nii``, ``.nii.gz``), on a disk or behind a URL."""

from __future__ import annotations

import zlib

from ...core.errors import BadHeader
from ..backend import Backend
from .nifti_header import NIFTI2_BYTES, parse_nifti
from .raw_backends import open_raw
from .stand_ins import what_to_do
from .stored_file import StoredFile

# Bytes that are surely enough to decode the header from.
HEAD_BYTES = 64 * 1024
_GZIP = 16 + zlib.MAX_WBITS


def open_nifti(file: StoredFile) -> Backend:
    """Open a ``.nii``."""
    return open_raw(parse_nifti(file.head(NIFTI2_BYTES), file.name), [file], file.name)


def open_nifti_gz(file: StoredFile) -> Backend:
    """Open a ``.nii.gz``: the header from its first bytes, the voxels when they are read."""
    head = decoded_head(file.head(HEAD_BYTES), file.name)
    return open_raw(parse_nifti(head, file.name), [file], file.name, encoding="gzip")


def decoded_head(
    head: bytes, name: str, do: str = "Remove .gz from its name if it is not compressed."
) -> bytes:
    """Return the beginning of what ``head`` decodes to: enough for a NIfTI header.

    ``do`` is the advice for a file that is not compressed.
    """
    try:
        return zlib.decompressobj(_GZIP).decompress(head, NIFTI2_BYTES)
    except zlib.error:
        raise BadHeader(
            f"{name} is not compressed with gzip: it begins with {head[:4]!r}.",
            do=what_to_do(head, do),
        ) from None
