"""A batch as bytes: everything but the voxels, which stay in their slots.

Any picklable structure travels; arrays and tensors in it are replaced by the place
where they lie. Where there are no slots, or for arrays of objects, they are pickled.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .arrivals import Arrival, SlotReader
from .slots import SlotWriter

# Below this an array is cheaper in the message than in a slot with its 2 MiB.
_INLINE_BYTES = 16 * 1024
_BITS = {1: torch.uint8, 2: torch.int16}


class _BatchPickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, slots: SlotWriter | None) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.slots = slots
        self.used: set[int] = set()

    def persistent_id(self, thing: Any) -> Any:
        """Return the place of an array or tensor in the slots; None to pickle it."""
        if type(thing) is np.ndarray and not thing.dtype.hasobject:
            return self._place(thing, None)
        array = _numpy_of(thing)
        return None if array is None else self._place(array, thing.dtype)

    def reducer_override(self, thing: Any) -> Any:
        """Pickle a small tensor as its own values; torch would pickle all of its storage."""
        array = _numpy_of(thing)
        return NotImplemented if array is None else (_tensor, (array.copy(), thing.dtype))

    def _place(self, array: Any, element: torch.dtype | None) -> Any:
        if self.slots is None:
            return None
        place = self.slots.place(array)
        if place is None:
            if array.nbytes < _INLINE_BYTES:
                return None
            place = self.slots.copy_in(array)
            if place is None:
                return None
        self.used.add(place[0])
        return (*place, array.shape, array.dtype, element)


def _numpy_of(thing: Any) -> Any:
    """Return the array of a plain CPU tensor; None for everything else."""
    if type(thing) is not torch.Tensor or thing.layout is not torch.strided:
        return None
    if thing.device.type != "cpu" or thing.requires_grad:
        return None
    thing = thing.resolve_conj().resolve_neg()
    try:
        return thing.numpy()
    except TypeError:  # NumPy has no such type, e.g. bfloat16: its bits travel as integers
        bits = _BITS.get(thing.element_size())
        return None if bits is None else thing.view(bits).numpy()


def _tensor(array: NDArray[Any], element: torch.dtype) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    return tensor if tensor.dtype == element else tensor.view(element)


class _BatchUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, arrival: Arrival) -> None:
        super().__init__(file)
        self.arrival = arrival

    def persistent_load(self, place: Any) -> Any:
        """Return the array or tensor that lies at ``place``, without a copy if it may stay."""
        number, offset, shape, dtype, element = place
        size = int(np.prod(shape)) * dtype.itemsize
        array = self.arrival.part(number, offset, size).view(dtype).reshape(shape)
        return array if element is None else _tensor(array, element)


def pack(batch: Any, slots: SlotWriter | None) -> tuple[bytes, set[int]]:
    """Return the batch without its voxels, and the slots in which they lie."""
    file = io.BytesIO()
    pickler = _BatchPickler(file, slots)
    pickler.dump(batch)
    return file.getvalue(), pickler.used


def unpack(data: bytes, slots: SlotReader) -> Any:
    """Return the batch that :func:`pack` took apart; its tensors look into the slots."""
    return _BatchUnpickler(io.BytesIO(data), slots.arrival()).load()
