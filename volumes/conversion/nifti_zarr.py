"""What makes a zarr group a NIfTI-Zarr and OME-Zarr 0.5 image: its metadata, as plain values.

The NIfTI header (version 2: 64-bit floats) keeps the affine, slope and intercept exactly; the
OME-Zarr metadata name the axes and give the spacing to viewers that know no NIfTI.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..header import Header, affine_matrix
from .convert_plan import ConvertPlan, origin_of

# NIfTI has neither; the type of the array is the one that counts.
_STAND_INS = {"b": np.dtype(np.uint8), "f": np.dtype(np.float32)}
# NIfTI's code for coordinates of the scanner that made the image.
_SCANNER = 1


def nifti_bytes(header: Header) -> bytes:
    """Return the 540 bytes of a NIfTI-2 header that says what ``header`` says."""
    from nibabel.nifti2 import Nifti2Header

    fields: Any = Nifti2Header(endianness="<")
    stored = header.value_type or header.disk_dtype
    stand_in = stored.kind == "b" or (stored.kind == "f" and stored.itemsize == 2)
    fields.set_data_dtype(_STAND_INS[stored.kind] if stand_in else stored.newbyteorder("<"))
    channels, i, j, k = header.shape
    # Dimensions are (x, y, z, t, c): what was folded into C is called channels.
    fields.set_data_shape((i, j, k) if channels == 1 else (i, j, k, 1, channels))
    spacing = spacing_of(header)
    fields.set_zooms(spacing if channels == 1 else (*spacing, 1.0, 1.0))
    fields.set_sform(affine_matrix(header.affine), code=_SCANNER)
    fields.set_xyzt_units("mm")
    fields["scl_slope"], fields["scl_inter"] = header.slope, header.intercept
    raw: bytes = fields.binaryblock
    return raw


def group_document(plan: ConvertPlan, name: str, record: dict[str, Any]) -> dict[str, Any]:
    """Return the ``zarr.json`` of the group.

    Parameters
    ----------
    plan
        What is written.
    name
        Of the image.
    record
        What voxpipe remembers of how it was made.
    """
    return {
        "zarr_format": 3,
        "node_type": "group",
        "attributes": {"ome": _ome(plan, name), "voxpipe": record},
    }


def spacing_of(header: Header) -> tuple[float, float, float]:
    """Return the distance between voxel centres; 1 along an axis that the affine collapses."""
    matrix = affine_matrix(header.affine)
    x, y, z = (math.hypot(*matrix[:3, axis]) or 1.0 for axis in range(3))
    return x, y, z


def _ome(plan: ConvertPlan, name: str) -> dict[str, Any]:
    spatial = {"type": "space", "unit": "millimeter"}
    kinds = {"c": {"type": "channel"}, "z": spatial, "y": spatial, "x": spatial}
    lead = [1.0] * (len(plan.axes) - 3)
    steps = [{"type": "scale", "scale": [*lead, *spacing_of(plan.header)[::-1]]}]
    origin = origin_of(plan.header)
    if origin is not None and any(origin):
        steps.append({"type": "translation", "translation": [*(0.0 for _ in lead), *origin[::-1]]})
    image = {
        "name": name,
        "axes": [{"name": axis, **kinds[axis]} for axis in plan.axes],
        "datasets": [{"path": "0", "coordinateTransformations": steps}],
    }
    return {"version": "0.5", "multiscales": [image]}
