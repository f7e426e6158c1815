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
from .nifti import open_by_head
from .raw import RawHeader, fastest_first
from .stored_file import Format, StoredFile, what_to_do

# The fields, and room for more: the voxels begin at this byte.
MGH_BYTES = 284
_GZIP_MAGIC = b"\x1f\x8b"
# Fields of goodRASFlag and before it end here; nibabel pads what is missing behind them.
_FIELD_BYTES = 90


def open_mgh(file: StoredFile) -> Backend:
    """Open a ``.mgh`` or a ``.mgz``."""
    is_gzip = not file.name.lower().endswith(".mgh")
    return open_by_head(
        file, parse_mgh, is_gzip=is_gzip, do="Name it .mgh if it is not compressed."
    )


def parse_mgh(raw: bytes, name: str) -> RawHeader:
    """Read the first 284 bytes of an MGH file."""
    from nibabel.freesurfer.mghformat import MGHHeader

    if raw.startswith(_GZIP_MAGIC):
        raise BadHeader(f"{name} is compressed with gzip.", do="Name it .mgz, or decompress it.")
    if len(raw) < MGH_BYTES:
        what = f"{name} holds {len(raw)} bytes, and an MGH header has {MGH_BYTES}."
        raise TruncatedVolume(what, do=what_to_do(raw))
    fields: Any = MGHHeader(raw[:_FIELD_BYTES], check=False)
    dims = [int(n) for n in fields["dims"]]
    if int(fields["version"]) != 1 or min(dims) < 1:
        why = f"version {int(fields['version'])}, dimensions {dims}"
        raise BadHeader(f"{name} has no sound MGH header: {why}.", do=what_to_do(raw))
    try:
        dtype = fields.get_data_dtype()
    except KeyError:
        msg = f"{name} holds voxels of MGH type {int(fields['type'])}, which is not read."
        do = "Convert them with mri_convert -odt float, for instance."
        raise UnknownFormat(msg, do=do) from None
    # Numbers of a damaged header may be so large that their product is none; NumPy would warn.
    with np.errstate(over="ignore", invalid="ignore"):
        affine = fields.get_affine()
    # Frames, the fourth, become channels.
    return RawHeader(fastest_first(dims), dtype, MGH_BYTES, affine_entries(affine, name))


FORMATS = (Format("mgh", (".mgh", ".mgz", ".mgh.gz"), open_mgh),)
