"""Format ``.npy``, local or remote, without pickles."""

from __future__ import annotations

import io
import math
import os
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...core.errors import BadHeader, UnknownFormat
from ...core.locks import ForkSafeLock
from ..backend import Backend
from ..header import refuse_unreadable
from .chunked_backend import Layout, plain_layout
from .raw import RawHeader, open_raw
from .stored_file import MAPS, Format, LocalStoredFile, StoredFile, check_size

# NumPy refuses headers of more than 10 000 characters; most have 118.
_HEAD_BYTES = 12 * 1024
_LONGEST_REASON = 200  # NumPy's text may repeat the whole header
# NumPy parses a header as Python, which in Python 3.11 may fail in two threads at once.
_PARSING = ForkSafeLock()


def open_npy(file: StoredFile, axes: Any = None) -> Backend:
    """Return the backend of a ``.npy`` of two to four axes, in C or Fortran order."""
    head = io.BytesIO(file.head(_HEAD_BYTES))
    shape, fortran, dtype = read_npy_header(head, file.name)
    layout = plain_layout(shape, file.name, axes)
    if fortran:
        last = len(shape) - 1
        i, j, k = (None if axis is None else last - axis for axis in layout.spatial)
        c_axes = tuple(last - axis for axis in layout.c_axes)
        layout = Layout(shape[::-1], c_axes, (i, j, k), layout.is_named)
    return open_raw(RawHeader(layout, dtype, head.tell()), [file], file.name)


def map_npy(path: str, name: str, start: int = 0) -> NDArray[Any]:
    """Return the array of a ``.npy`` file as a read-only map.

    ``start`` is the byte at which the array begins in a file of several.
    """
    with LocalStoredFile(path).open() as file:
        file.seek(start)
        shape, fortran, dtype = read_npy_header(file, name)
        offset, actual = file.tell(), os.fstat(file.fileno()).st_size
        end = offset + math.prod(shape) * dtype.itemsize
        check_size(name, actual, end)
        order: Any = "F" if fortran else "C"
        file_map = MAPS.add(file, start, end - start)
        return np.ndarray(shape, dtype, file_map, offset - start, order=order)


def read_npy_header(file: BinaryIO, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, Fortran order and type; leave the file at the first voxel."""
    formats = np.lib.format
    readers = {(1, 0): formats.read_array_header_1_0, (2, 0): formats.read_array_header_2_0}
    try:
        version = formats.read_magic(file)
        if version not in readers:
            holds = "holds only records" if version == (3, 0) else "is unknown"
            msg = f"{name} has version {version[0]}.{version[1]} of .npy, which {holds}."
            raise UnknownFormat(msg, do="Save a plain array by numpy.save.")
        with _PARSING:
            shape, fortran, dtype = readers[version](file)
    except UnknownFormat:
        raise
    except Exception as error:  # ValueError, TokenError, SyntaxError: the header is Python text
        reason = " ".join(str(error.args[0] if error.args else error).split())[:_LONGEST_REASON]
        raise BadHeader(f"{name} has no sound .npy header: {reason}.") from None
    refuse_unreadable(dtype, name)
    if min(shape, default=0) < 1:
        raise BadHeader(f"{name} holds no voxels: shape {shape}.")
    return shape, fortran, dtype


# Not "npy": users may register and unregister that name.
FORMATS = (Format("numpy", (".npy",), open_npy, ("axes",)),)
