"""Arrays of zarr-python's groups, as each of its versions writes them."""

from typing import Any

import numpy as np


def add_array(group: Any, name: str, *, data: Any, **options: Any) -> Any:
    """Write an array of a group and return it: groups of zarr 3.0 take no ``data``."""
    voxels = np.asarray(data)
    array = group.create_array(name, shape=voxels.shape, dtype=voxels.dtype, **options)
    array[...] = voxels
    return array
