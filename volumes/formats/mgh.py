"""FreeSurfer's MGH: ``.mgh``, and ``.mgz`` as one gzip stream, on a disk or behind a URL.

nibabel's class reads the fields. Behind the voxels lie acquisition parameters and tags of any
length, which nobody needs here.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.errors import BadHeader, TruncatedVolume, UnknownFormat
from ..backend import Backend
from ..header import affine_entries
from .nifti import HEAD_BYTES, decoded_head
from .raw import RawHeader, open_raw
from .stored_file import Format, StoredFile, what_to_do

# The fields, and room for more: the voxels begin at this byte.
MGH_BYTES = 284
_GZIP_MAGIC = b"\x1f\x8b"
# Fields of goodRASFlag and before it end here; nibabel pads what is missing behind them.
_FIELD_BYTES = 90


def open_mgh(file: StoredFile) -> Backend:
    """Open a ``.mgh`` or a ``.mgz``, of which only the first bytes are decoded before a read."""
    if file.name.lower().endswith(".mgh"):
        return open_raw(parse_mgh(file.head(MGH_BYTES), file.name), [file], file.name)
    head = decoded_head(file.head(HEAD_BYTES), file.name, "Name it .mgh if it is not compressed.")
    fields = parse_mgh(head, file.name)
    return open_raw(fields, [file], file.name, encoding="gzip", trailing=True)


def parse_mgh(raw: bytes, name: str) -> RawHeader:
    """Read the first 284 bytes of an MGH file."""
    from nibabel.freesurfer.mghformat import MGHHeader

    if raw.startswith(_GZIP_MAGIC):
        raise BadHeader(f"{name} is compressed with gzip.", do="Name it .mgz, or decompress it.")
    if len(raw) < MGH_BYTES:
        raise TruncatedVolume(
            f"{name} holds {len(raw)} bytes, and an MGH header has {MGH_BYTES}.",
            do=what_to_do(raw, "Copy or download the file again."),
        )
    fields: Any = MGHHeader(raw[:_FIELD_BYTES], check=False)
    dims = [int(n) for n in fields["dims"]]
    if int(fields["version"]) != 1 or min(dims) < 1:
        why = f"version {int(fields['version'])}, dimensions {dims}"
        raise BadHeader(
            f"{name} has no sound MGH header: {why}.",
            do=what_to_do(raw, "Check how the file was written."),
        )
    try:
        dtype = fields.get_data_dtype()
    except KeyError:
        raise UnknownFormat(
            f"{name} holds voxels of MGH type {int(fields['type'])}, which is not read.",
            do="Convert them with mri_convert -odt float, for instance.",
        ) from None
    # Numbers of a damaged header may be so large that their product is none; NumPy would warn.
    with np.errstate(over="ignore", invalid="ignore"):
        affine = fields.get_affine()
    # Frames, the fourth, become channels.
    return RawHeader(tuple(dims), dtype, MGH_BYTES, affine_entries(affine, name))


FORMATS = (Format("mgh", (".mgh", ".mgz", ".mgh.gz"), open_mgh),)
