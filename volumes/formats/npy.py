"""``.npy`` on a local disk, mapped. Never unpickles anything."""

from __future__ import annotations

import math
import os
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ...core import IO_COUNTERS
from ...core.errors import BadHeader, TruncatedVolume, UnknownFormat
from ...storage.local_io import IoChoice
from ..backend import Backend
from ..header import IDENTITY, Header, channels_first
from ..scheme import StoreLayout
from ..voxels import refuse_unreadable
from .chunked_backend import Layout, plain_layout
from .local_file import MAPS, LocalFile, MappedBackend, file_stamp, open_local
from .raw import ArrayFile, io_of, placed_layout


def open_npy(path: str, name: str, io: str = "auto") -> Backend:
    """Return the backend of a ``.npy`` of two to four axes, in C or Fortran order."""
    with open_local(path) as file:
        choice = io_of(file, io)
        if choice.mode == "mmap":
            return NpyBackend(path, name, choice)
        stamp = file_stamp(path)
        shape, fortran, dtype = checked_npy_header(file, name)
        IO_COUNTERS.count(headers=1)
        layout = npy_layout(shape, fortran, name)
        header = Header(layout.shape, IDENTITY, dtype, access="range", stamp=stamp)
        return ArrayFile(file, choice, path, file.tell(), layout, header, name)


def npy_layout(shape: tuple[int, ...], fortran: bool, name: str) -> Layout:
    """Return which axes are C, I, J, K of an array that counts as stored in C order.

    Examples
    --------
    >>> npy_layout((3, 8, 9, 10), True, "a.npy")
    Layout(stored=(10, 9, 8, 3), folded=(3,), spatial=(2, 1, 0))
    """
    plain = plain_layout(shape, name)
    if not fortran:
        return plain
    last = len(shape) - 1
    i, j, k = (None if axis is None else last - axis for axis in plain.spatial)
    return Layout(shape[::-1], tuple(last - axis for axis in plain.folded), (i, j, k))


class NpyBackend(LocalFile, MappedBackend):
    """A mapped ``.npy``."""

    def __init__(self, path: str, name: str, choice: IoChoice) -> None:
        self.path, self._choice = path, choice
        stamp = file_stamp(path)
        array = channels_first(map_npy(path, name), name)
        IO_COUNTERS.count(headers=1)
        super().__init__(array, Header(array.shape, IDENTITY, array.dtype, stamp=stamp), name)

    def layout(self, volumes: int = 1) -> StoreLayout:
        """Return what a scheme needs to know."""
        return placed_layout(super().layout(volumes), self._choice)


def map_npy(path: str, name: str, start: int = 0) -> NDArray[Any]:
    """Return the array of a ``.npy`` file as a read-only map.

    ``start`` is where it begins, in bytes, if it lies in a file with others.

    Raises
    ------
    BadHeader, TruncatedVolume, UnknownFormat
        It is no ``.npy`` file, is too short, or holds objects.
    """
    with open_local(path) as file:
        file.seek(start)
        shape, fortran, dtype = checked_npy_header(file, name)
        offset = file.tell()
        expected = offset + math.prod(shape) * dtype.itemsize
        order: Any = "F" if fortran else "C"
        mapped = MAPS.add(file, start, expected - start)
        return np.ndarray(shape, dtype, mapped, offset - start, order=order)


def checked_npy_header(file: BinaryIO, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return the same as :func:`read_npy_header`; ``TruncatedVolume`` if voxels are missing."""
    shape, fortran, dtype = read_npy_header(file, name)
    actual = os.fstat(file.fileno()).st_size
    expected = file.tell() + math.prod(shape) * dtype.itemsize
    if actual < expected:
        raise TruncatedVolume(
            f"{name} holds {actual} bytes, and its header speaks of {expected}.",
            do="Copy or download the file again.",
        )
    return shape, fortran, dtype


def read_npy_header(file: BinaryIO, name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return shape, whether it is in Fortran order, and type; the file then stands at the voxels.

    Raises
    ------
    BadHeader, UnknownFormat
        It is no ``.npy`` file, or holds no plain numbers.
    """
    formats = np.lib.format
    readers = {(1, 0): formats.read_array_header_1_0, (2, 0): formats.read_array_header_2_0}
    try:
        version = formats.read_magic(file)
        if version not in readers:
            raise UnknownFormat(
                f"{name} is .npy version {version}, which only holds records.",
                do="Save a plain array.",
            )
        shape, fortran, dtype = readers[version](file)
    except UnknownFormat:
        raise
    except Exception as error:  # ValueError, TokenError, SyntaxError: as Python reads the text
        raise BadHeader(
            f"{name} is no sound .npy file: {error}.", do="Write it with numpy.save."
        ) from None
    refuse_unreadable(dtype, name)
    if min(shape, default=0) < 1:
        raise BadHeader(f"{name} holds no voxels: shape {shape}.", do="Check the file.")
    return shape, fortran, dtype
