"""Copy items into page-locked memory, ahead of their use."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch

from ...batching import Instruction
from ...graph import Pipe, Traits
from ..background_iterator import Prefetcher
from ..datapipe import SameLength, located
from ..forms import offered
from ..tensors import BUFFER_BYTES, map_tensors, need_cuda, parse_device

# One that is in use, one that is being copied.
_BUFFER_SIZE = 2


def pin_memory_fn(data: Any, device: Any = None) -> Any:
    """Return ``data`` with the tensors in it in page-locked memory.

    A class of your own can have a method ``pin_memory(device)``.
    """
    if hasattr(data, "pin_memory"):
        return data.pin_memory(device)
    return map_tensors(data, lambda tensor: tensor.pin_memory())


@offered("pin_memory")
class PinMemory(Prefetcher):
    """Copy the tensors of each item into page-locked memory, in a thread, two items ahead.

    Batches of a ``DataLoader2`` with workers lie in page-locked memory already, once CUDA has
    been initialised. This pipe is not replicable: a loader runs it in its own process.

    Parameters
    ----------
    device
        For what ``pin_memory_fn`` wants it; the current CUDA device by default.
    pin_memory_fn
        ``f(item, device)``; a default that goes into mappings, lists and tuples.
    buffer_bytes
        Bytes that items made ahead may take.

    Raises
    ------
    NoDevice
        At construction: CUDA is not available. This is a ``RuntimeError``.
    """

    traits: ClassVar[Traits] = Traits(main_process=True)

    def __init__(
        self,
        source_datapipe: Pipe,
        device: Any = None,
        pin_memory_fn: Callable[..., Any] = pin_memory_fn,
        *,
        buffer_bytes: int = BUFFER_BYTES,
    ) -> None:
        super().__init__(source_datapipe, _BUFFER_SIZE, buffer_bytes=buffer_bytes)
        with located(self):
            need_cuda("pin_memory")
        self.device = torch.cuda.current_device() if device is None else device
        self.pin_memory_fn = pin_memory_fn

    def change(self) -> Callable[[Any], Any]:
        """Return the function that pins."""
        return lambda item: self.pin_memory_fn(item, self.device)

    def is_replicable(self) -> bool:
        """Return False: it belongs into the process that has the device."""
        return False

    def instructions(self) -> tuple[Instruction, ...] | None:
        """Return None: it has to be run."""
        return None


@offered("to_device")
class ToDevice(SameLength):
    """Move every tensor of an item to a device; what else it holds stays.

    This pipe is not replicable: a loader runs it in its own process, behind its workers.

    Parameters
    ----------
    device
        As torch takes it: ``"cuda"``, ``"cuda:1"``, ``torch.device("cpu")``.
    non_blocking
        Whether to go on while tensors in page-locked memory are copied.

    Raises
    ------
    NoDevice
        At construction: it names no device, or a CUDA device that is not there. This is a
        ``RuntimeError``.

    Examples
    --------
    >>> import torch
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> pipe = IterableWrapper([{"image": torch.ones(2), "case": "a"}]).to_device("cpu")
    >>> list(pipe)
    [{'image': tensor([1., 1.]), 'case': 'a'}]
    """

    traits: ClassVar[Traits] = Traits(main_process=True)

    def __init__(self, source_datapipe: Pipe, device: Any, *, non_blocking: bool = True) -> None:
        super().__init__(source_datapipe)
        self.non_blocking = non_blocking
        with located(self):
            self.device = parse_device("to_device", device)
            if self.device.type == "cuda":
                need_cuda("to_device", self.device)

    def is_replicable(self) -> bool:
        """Return False: it belongs into the process that has the device."""
        return False

    def __iter__(self) -> Iterator[Any]:
        for item in self.parent:
            yield map_tensors(item, lambda one: one.to(self.device, non_blocking=self.non_blocking))
