"""Messages between the consumer's process and its workers, and the batches in them.

Messages are frozen, and pickled whole.
"""

from __future__ import annotations

import io
import math
import pickle
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...batching.channel_orders import NewChannels
from ...batching.collate import ArraySpec, RealizedArray
from ...core.counters import Key, PipeCounts
from ...volumes.session import OpenedVersion


class Carrier(Protocol):
    """Memory in which the batches of a worker travel: shared slots, or buffers of a stream."""

    def take(self, specs: Sequence[ArraySpec]) -> list[NDArray[np.generic]]:
        """Return one C-ordered, uninitialised array per spec; they travel without a copy."""

    def place(self, array: NDArray[Any]) -> tuple[int, int] | None:
        """Return (part, offset) of an array in this memory; None for others."""

    def copy_in(self, array: NDArray[Any]) -> tuple[int, int] | None:
        """Return (part, offset) of an array from elsewhere; None without room."""

    def note_sent(self, numbers: Collection[int]) -> None:
        """Note the parts of the batch that is sent now."""

    def release(self, numbers: Sequence[int], given_up: Sequence[int]) -> None:
        """Use parts again that the consumer has freed, but none that were ``given_up``."""


class BatchReader(Protocol):
    """The consumer's side of a carrier: one batch that has arrived."""

    @property
    def bytes(self) -> int:
        """Bytes of its parts."""

    def part(self, number: int, offset: int, size: int) -> NDArray[np.uint8]:
        """Return ``size`` bytes of a part, which stay valid as long as the array."""


@dataclass(frozen=True)
class DoJob:
    """To a worker: realize one batch."""

    index: int  # number of the batch, or of the item of a replicated graph
    job: bytes  # ``Job`` or index, pickled apart as it may hold the user's objects; empty: none
    seed: int
    epoch: int
    free_slots: tuple[int, ...] = ()  # slots that the consumer no longer uses
    given_up: tuple[int, ...] = ()
    """Free slots that must not be used again: a child of the consumer uses them."""
    run: int = 0  # number of the pass in its pool
    payload: bytes = b""  # new payload of the worker; empty for no change


class Deal(NamedTuple):
    """To a worker: an item that is dealt out to it."""

    item: bytes = b""  # the item, pickled
    ends: bool = False  # no item: that was the last one
    fails: bool = False  # no item: the pipes that make them have failed


class Took(NamedTuple):
    """From a worker: it has begun with its next dealt item."""


STOP = b""  # to a worker: end now


class Ready(NamedTuple):
    """From a worker: it is up."""


class Notes(NamedTuple):
    """From a worker: memory for its current step; the descriptor follows."""

    size: int


class NewSlot(NamedTuple):
    """From a worker: a slot; the descriptor follows."""

    number: int
    size: int


class RetireSlot(NamedTuple):
    """From a worker: a slot that it will not use again."""

    number: int


class WorkerReport(NamedTuple):
    """Counts, warnings, opened versions and channels of a worker since its last report."""

    ledger: dict[Key, PipeCounts]
    warnings: tuple[tuple[str, type[Warning]], ...]
    versions: tuple[OpenedVersion, ...]  # versions of volumes that it has opened
    channels: tuple[NewChannels, ...] = ()  # named channels that it has found first
    run: int = 0  # the pass of the job
    seconds: float = 0.0  # time that the job took


@dataclass(frozen=True)
class BatchMessage:
    """From a worker: a batch."""

    index: int
    data: Any
    """The packed batch, as the worker's :meth:`open` takes it; None if its replica has no more."""
    report: WorkerReport


class RepeatedAnswer(NamedTuple):
    """From a pool: another worker has answered this job before, so only the report counts."""

    report: WorkerReport


@dataclass(frozen=True)
class ErrorMessage:
    """From a worker: an error in the pipes."""

    index: int
    error: bytes  # the exception, pickled; empty if it cannot be
    what: str  # its class and message
    text: str  # the worker's traceback
    report: WorkerReport


Feed: TypeAlias = Callable[[], Any]
"""Waits for the next item of a worker; returns ``END_OF_ITEMS`` after the last."""
END_OF_ITEMS = object()  # compared by identity, so valid in one process only


class SourceFailed(RuntimeError):
    """The pipes that make the items have failed, in the process that runs them."""


# A batch as bytes without its voxels, which stay in their slots. Arrays of objects, and all arrays
# without slots, are pickled. Realized arrays arrive as tensors.

Strides: TypeAlias = "tuple[int, ...] | None"  # strides in bytes; None for C order

# A smaller array is cheaper in the message than in a slot of 2 MiB.
_INLINE_BYTES = 16 * 1024


class _BatchPickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, slots: Carrier | None) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.slots = slots
        self.numbers: set[int] = set()

    def persistent_id(self, thing: Any) -> Any:
        """Return the place of an array or tensor in the slots; None to pickle it."""
        if type(thing) is np.ndarray and not thing.dtype.hasobject:
            return self._place(thing, None)
        parts = _tensor_parts(thing)
        return None if parts is None else self._place(*parts)

    def reducer_override(self, thing: Any) -> Any:
        """Pickle the values of a small tensor; torch would pickle its whole storage."""
        if (parts := _tensor_parts(thing)) is None:
            return NotImplemented
        flat, strides = in_order(parts[0])
        return _tensor, (flat.copy().reshape(-1), parts[1], parts[0].shape, strides)

    def _place(self, array: Any, element: str | None) -> Any:
        if self.slots is None:
            return None
        flat, strides = in_order(array)
        place = self.slots.place(flat)
        if place is None:
            if array.nbytes < _INLINE_BYTES:
                return None
            if (place := self.slots.copy_in(flat)) is None:
                return None
        self.numbers.add(place[0])
        return (*place, array.shape, strides, array.dtype, element)


def _tensor_parts(thing: Any) -> tuple[NDArray[Any], str] | None:
    """Return the array and the torch dtype of a tensor to be; None for other objects."""
    if type(thing) is RealizedArray:
        return thing.array, thing.dtype.name
    if "torch" not in sys.modules:
        return None
    import torch

    if type(thing) is not torch.Tensor or thing.layout is not torch.strided:
        return None
    if thing.device.type != "cpu" or thing.requires_grad:
        return None
    thing = thing.resolve_conj().resolve_neg()
    name = str(thing.dtype).removeprefix("torch.")
    try:
        return thing.numpy(), name
    except TypeError:  # NumPy lacks the type, e.g. bfloat16: send its bits as integers
        bits = {1: torch.uint8, 2: torch.int16}.get(thing.element_size())
        return None if bits is None else (thing.view(bits).numpy(), name)


def in_order(array: NDArray[Any]) -> tuple[NDArray[Any], Strides]:
    """Return ``array`` with its axes in memory order, and its strides in bytes.

    This keeps ``channels_last`` and transpositions. The strides are None for C order, in which
    arrays with gaps or overlaps arrive.
    """
    if array.flags.c_contiguous:
        # An axis of length 1 may have any stride, from which torch reads its memory format.
        usual = array.size == 0 or array.strides == array.reshape(-1).reshape(array.shape).strides
        return array, None if usual else array.strides
    if min(array.strides) < 0:
        return array, None
    axes = sorted(range(array.ndim), key=lambda n: (-array.strides[n], array.shape[n] != 1))
    flat = array.transpose(axes)
    return (flat, array.strides) if flat.flags.c_contiguous else (array, None)


def _laid_out(flat: NDArray[Any], shape: tuple[int, ...], strides: Strides) -> NDArray[Any]:
    """Return elements in memory order as an array with its former shape and strides."""
    if strides is None:
        return flat.reshape(shape)
    return np.lib.stride_tricks.as_strided(flat, shape, strides)


def _tensor(
    flat: NDArray[Any], element: str, shape: tuple[int, ...], strides: Strides = None
) -> Any:
    """Return a tensor over the elements; only the consumer calls it, which has torch."""
    import torch

    tensor = torch.from_numpy(_laid_out(flat, shape, strides))
    dtype = getattr(torch, element)
    return tensor if tensor.dtype == dtype else tensor.view(dtype)


class _BatchUnpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, arrival: BatchReader) -> None:
        super().__init__(file)
        self.arrival = arrival

    def persistent_load(self, place: Any) -> Any:
        """Return the array or tensor at ``place``, without a copy if it may stay in its slot."""
        number, offset, shape, strides, dtype, element = place
        size = math.prod(shape) * dtype.itemsize
        flat = self.arrival.part(number, offset, size).view(dtype)
        if element is None:
            return _laid_out(flat, shape, strides)
        return _tensor(flat, element, shape, strides)


def pack(batch: Any, slots: Carrier | None) -> tuple[bytes, set[int]]:
    """Return the batch without its voxels, and the numbers of their slots."""
    file = io.BytesIO()
    pickler = _BatchPickler(file, slots)
    pickler.dump(batch)
    return file.getvalue(), pickler.numbers


def unpack(data: bytes, arrival: BatchReader) -> Any:
    """Return the batch of :func:`pack`; its tensors are views of the slots."""
    return _BatchUnpickler(io.BytesIO(data), arrival).load()
