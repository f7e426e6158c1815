"""Zarr v2 arrays written byte by byte: no library decides what is right."""

from __future__ import annotations

import itertools
import json

import numpy as np


def write_v2(folder, array, chunks, fill=0, attributes=None):
    """Write an uncompressed array; chunks that hold nothing but the fill value are left out."""
    folder.mkdir(parents=True)
    meta = {
        "zarr_format": 2,
        "shape": array.shape,
        "chunks": chunks,
        "dtype": array.dtype.str,
        "compressor": None,
        "filters": None,
        "fill_value": fill,
        "order": "C",
    }
    (folder / ".zarray").write_text(json.dumps(meta))
    if attributes:
        (folder / ".zattrs").write_text(json.dumps(attributes))
    counts = [-(-n // c) for n, c in zip(array.shape, chunks, strict=True)]
    for index in itertools.product(*map(range, counts)):
        box = tuple(slice(i * c, (i + 1) * c) for i, c in zip(index, chunks, strict=True))
        chunk = np.full(chunks, fill, array.dtype)
        part = array[box]
        chunk[tuple(map(slice, part.shape))] = part
        if (chunk != fill).any():
            (folder / ".".join(map(str, index))).write_bytes(chunk.tobytes())
    return folder


def write_v2_group(folder, attributes, **arrays):
    """Write a group of arrays in two chunks per axis."""
    folder.mkdir(parents=True)
    (folder / ".zgroup").write_text('{"zarr_format": 2}')
    (folder / ".zattrs").write_text(json.dumps(attributes))
    for name, array in arrays.items():
        write_v2(folder / name.lstrip("_"), array, tuple(-(-n // 2) for n in array.shape))
    return folder
