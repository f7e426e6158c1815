"""Volumes whose voxels are in memory: arrays, tensors, images of nibabel.

A small array travels inside the pickle. A larger one is written to a temporary
file on its first journey, which the other process maps.
"""

from __future__ import annotations

import uuid
from typing import Any

from numpy.typing import NDArray

from .backend import Backend, as_array, only_in_torch
from .header import Header, array_header, channels_first
from .spill import ArrayBackend, original, remember, travel

# A pickled volume stays below 16 kB; half of that leaves room for the header.
INLINE_BYTES = 8 * 1024


class ArraySource:
    """An array (C, I, J, K) in this process. Its voxels must not change while a pass reads them."""

    def __init__(self, array: NDArray[Any], header: Header, name: str, token: str = "") -> None:
        self.array = array
        self.name = name
        self.token = token or uuid.uuid4().hex
        self.backend = ArrayBackend(array, header, name, self.token)
        self._latest: ArraySource | None = None
        self._pass = ""

    def opened_anew(self, by: str) -> ArraySource:
        """Return the source for a pass: of another token where voxels were written to meanwhile.

        Statistics, tables and copies are kept by the token, and so are made anew, all of them.
        """
        latest = self._latest or self
        looked, self._pass = self._pass == by, by  # several cases may show one array
        if looked:
            return latest
        if not latest.backend.holds_what_is_kept:
            latest = self._latest = ArraySource(self.array, self.backend.header, self.name)
        return latest

    def open(self) -> Backend:
        """Return the backend; nothing has to be opened."""
        return self.backend

    def __reduce__(self) -> tuple[Any, ...]:
        header = self.backend.header
        if self.array.nbytes > INLINE_BYTES:
            return travel(self, header, lambda: self.array)
        remember(self)
        # It arrives with the values of this moment, where something may be kept of earlier ones.
        self.backend.note()
        # ``copy`` drops the rest of a larger array of which this is a view.
        return _arrive_inline, (self.array.copy(), header, self.name, self.token)


def _arrive_inline(array: NDArray[Any], header: Header, name: str, token: str) -> Any:
    return original(token) or ArraySource(array, header, name, token)


def held_in_memory(tensor: Any, affine: tuple[float, ...], name: str) -> Backend:
    """Return the backend of a tensor (C, I, J, K), which shares its memory."""
    backend = from_array(tensor, affine).backend
    backend.name = name
    return backend


def from_array(array: Any, affine: tuple[float, ...]) -> ArraySource:
    """Return the source of a tensor or an array of two to four axes; memory is shared."""
    values = as_array(array)
    name = f"array {tuple(values.shape)} {values.dtype.name}"
    values = channels_first(values, name)
    name = f"array {tuple(values.shape)} {values.dtype.name}"
    header = array_header(values, affine, name, tensor_dtype=only_in_torch(array))
    return ArraySource(values, header, name)
