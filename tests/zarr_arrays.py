"""Arrays of zarr-python's groups, as each of its versions writes them."""

from typing import Any

import numpy as np
import zarr

try:
    import zarr.codecs.numcodecs as wrapped_codecs
except ImportError:  # before zarr 3.1.3
    import numcodecs.zarr3 as wrapped_codecs

__all__ = ["add_array", "wrapped_codecs", "write_shards_whole"]


def add_array(group: Any, name: str, *, data: Any, **options: Any) -> Any:
    """Write an array of a group and return it: groups of zarr 3.0 take no ``data``."""
    voxels = np.asarray(data)
    array = group.create_array(name, shape=voxels.shape, dtype=voxels.dtype, **options)
    array[...] = voxels
    return array


def write_shards_whole() -> None:
    """Let ``zarr.create_array(data=...)`` write whole shards.

    zarr 3.0 writes the chunks of one shard at once, each in a copy of the shard that lacks others.
    """
    create = zarr.create_array

    def create_array(store: Any, *, data: Any = None, **options: Any) -> Any:
        if data is None or options.get("shards") is None:
            return create(store, **({} if data is None else {"data": data}), **options)
        voxels = np.asarray(data)
        if not voxels.dtype.isnative:  # zarr 3.0 knows the order of bytes from the codec alone
            options["serializer"] = zarr.codecs.BytesCodec(endian="big")
            voxels = voxels.astype(voxels.dtype.newbyteorder("="))
        array = create(store, shape=voxels.shape, dtype=voxels.dtype, **options)
        array[...] = voxels
        return array

    zarr.create_array = create_array
