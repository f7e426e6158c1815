"""OME-Zarr of both versions, written by zarr-python alone, as other programs write it."""

import numpy as np
import zarr
from zarr_arrays import add_array

_TYPES = {"t": "time", "c": "channel"}


def write_image(path, array, axes, version, labels=None, sizes=None, **attributes):
    """Write an image of one level, with label groups ``{name: (array, axes)}``.

    ``sizes`` are steps along axes by letter. Times are in seconds.
    """
    group = zarr.open_group(path, mode="w", zarr_format=version)
    named = [
        {"name": axis, "type": _TYPES[axis], **({"unit": "second"} if axis == "t" else {})}
        if axis in _TYPES
        else {"name": axis, "type": "space", "unit": "micrometer"}
        for axis in axes
    ]
    scale = [1.0 if axis in "tc" else 0.5 for axis in axes]
    scale = [float((sizes or {}).get(axis, n)) for axis, n in zip(axes, scale, strict=True)]
    step = {"type": "scale", "scale": scale}
    image = {"axes": named, "datasets": [{"path": "0", "coordinateTransformations": [step]}]}
    names = {"dimension_names": [*axes]} if version == 3 else {}
    chunks = (1,) * (len(axes) - 2) + (16, 16)
    add_array(group, "0", data=array, chunks=chunks, **names)
    set_ome(group, {"multiscales": [{**image, "version": "0.4"}], **attributes})
    for name, (voxels, own) in (labels or {}).items():
        write_image(f"{path}/labels/{name}", voxels, own, version)
    if labels:
        parent = zarr.open_group(f"{path}/labels", mode="a", zarr_format=version)
        set_ome(parent, {"labels": [*labels]})
    return str(path)


def set_ome(group, attributes):
    """Set attributes of OME-Zarr where the version of the group has them."""
    is_new = group.metadata.zarr_format == 3
    group.attrs.update({"ome": {"version": "0.5", **attributes}} if is_new else attributes)


def write_plate(path, version, wells, fields, array, axes, labels=None):
    """Write a plate of wells ``"A/1"``, each with some fields."""
    root = zarr.open_group(path, mode="w", zarr_format=version)
    entries = [{"path": well, "rowIndex": 0, "columnIndex": n} for n, well in enumerate(wells)]
    set_ome(root, {"plate": {"wells": entries, "version": "0.4"}})
    for number, well in enumerate(wells):
        group = root.create_group(well)
        images = [{"path": str(field)} for field in range(fields)]
        set_ome(group, {"well": {"images": images, "version": "0.4"}})
        for field in range(fields):
            voxels = array + np.array(10 * number + field, array.dtype)
            write_image(f"{path}/{well}/{field}", voxels, axes, version, labels)
    return str(path)
