"""``.hdr`` and ``.img``: NIfTI in two files, and Analyze as nibabel understands it."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

from ...core.errors import BadHeader, MissingDependency
from ..backend import Backend
from ..header import affine_entries
from ..local_file import open_local
from ..raw_header import RawHeader
from .nifti import HEAD_BYTES, decoded_head
from .nifti_header import (
    NIFTI1_BYTES,
    NIFTI2_BYTES,
    parse_nifti_of_pair,
    raw_header,
    size_and_order,
)
from .raw_backends import open_raw
from .stored_file import LocalStoredFile, StoredFile

_MAGIC_AT = {NIFTI1_BYTES: 344, NIFTI2_BYTES: 4}
# Nibabel takes a pair whose magic says "one file" for a pair all the same.
_MAGICS = (b"ni1", b"n+1", b"ni2", b"n+2")
# SPM's two matrices of 4 x 4 take 400; what is deflated in it may be a thousand times as much.
_MOST_MAT_BYTES = 64 * 1024


def open_pair(file: StoredFile, name: str) -> Backend:
    """Open a pair by either of its names; both files are compressed, or none.

    Raises
    ------
    BadHeader
        The header makes no sense, or is Analyze's and behind a URL: whether a ``.mat``
        that moves it lies there is only looked up on local disks.
    """
    gzipped = name.lower().endswith(".gz")
    is_header = name.lower().removesuffix(".gz").endswith(".hdr")
    header = file if is_header else file.renamed(".img", ".hdr")
    voxels = file.renamed(".hdr", ".img") if is_header else file
    raw = header.head(HEAD_BYTES if gzipped else NIFTI2_BYTES)
    raw = decoded_head(raw, header.name) if gzipped else raw
    fields = _parse(raw, header)
    encoding = "gzip" if gzipped else "raw"
    return open_raw(fields, [header, voxels], name, encoding=encoding)


def _parse(raw: bytes, header: StoredFile) -> RawHeader:
    if len(raw) >= NIFTI1_BYTES:
        size, order = size_and_order(raw, header.name)
        if not raw[_MAGIC_AT[size] :].startswith(_MAGICS):
            if size == NIFTI1_BYTES:
                return _parse_analyze(raw, order, header)
            raise BadHeader(
                f"{header.name} has no sound NIfTI header: its magic is {raw[4:8]!r}.",
                do="Check how the file was written.",
            )
    return parse_nifti_of_pair(raw, header.name)


def _parse_analyze(raw: bytes, order: str, header: StoredFile) -> RawHeader:
    """Return what an Analyze header (plain, SPM99, SPM2) says, by nibabel's rule.

    The first axis runs to the left, the origin is SPM's field or the centre, and a
    ``.mat`` beside the file has the last word.
    """
    from nibabel.spm2analyze import Spm2AnalyzeHeader

    fields: Any = Spm2AnalyzeHeader(binaryblock=raw[:NIFTI1_BYTES], endianness=order, check=False)
    found = raw_header(fields, 0, 1.0, header.name)
    if not isinstance(header, LocalStoredFile):
        raise BadHeader(
            f"{header.name} is an Analyze header, which is only read from local disks.",
            do="Copy both files, or convert them to .nii.",
        )
    mat = os.path.splitext(header.path.removesuffix(".gz"))[0] + ".mat"
    if not os.path.exists(mat):
        return found
    with open_local(mat) as file:
        size = os.fstat(file.fileno()).st_size
    if size > _MOST_MAT_BYTES:
        raise BadHeader(
            f"{mat} takes {size} bytes, and the matrices of an image {_MOST_MAT_BYTES} at most.",
            do="Remove it if it does not belong to the image.",
        )
    return replace(found, affine=affine_entries(_affine_of_mat(header), header.name))


def _affine_of_mat(header: LocalStoredFile) -> Any:
    """Return the affine that nibabel makes of header and ``.mat``."""
    import nibabel

    try:
        image: Any = nibabel.load(header.path)
    except ImportError as error:
        raise MissingDependency(
            f"the .mat beside {header.name} needs scipy.", do="pip install scipy"
        ) from error
    except Exception as error:  # whatever scipy raises on damaged files
        raise BadHeader(
            f"the .mat beside {header.name} cannot be read: {error}.",
            do="Remove it if it does not belong to the image.",
        ) from error
    return image.affine
