"""Move the tensors of items to a device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from ....core.errors import NoDevice
from ....graph import Pipe, Traits
from ...datapipe import DataPipe, length_of
from ...devices import named_device, need_cuda, with_tensors
from ...forms import offered


@offered("to_device")
class ToDevice(DataPipe):
    """Move every tensor of an item to a device; what else it holds stays.

    Parameters
    ----------
    source_datapipe
        The parent.
    device
        As torch takes it: ``"cuda"``, ``"cuda:1"``, ``torch.device("cpu")``.
    non_blocking
        Whether to go on while tensors in page-locked memory are copied.

    Notes
    -----
    This pipe is not replicable: a loader runs it in its own process, behind its workers.

    Raises
    ------
    NoDevice
        At construction: it names no device, or a CUDA device that is not there. This is a
        ``RuntimeError``.
    TypeError
        At construction: it is nothing that could name one.

    Examples
    --------
    >>> import torch
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> pipe = IterableWrapper([{"image": torch.ones(2), "case": "a"}]).to_device("cpu")
    >>> list(pipe)
    [{'image': tensor([1., 1.]), 'case': 'a'}]
    """

    traits: ClassVar[Traits] = Traits(here=True)

    def __init__(self, source_datapipe: Pipe, device: Any, *, non_blocking: bool = True) -> None:
        super().__init__()
        self.parent = source_datapipe
        self.non_blocking = non_blocking
        try:
            self.device = named_device("to_device", device)
            if self.device.type == "cuda":
                need_cuda("to_device", self.device)
        except NoDevice as error:
            raise error.at(self.origin)  # noqa: B904  the very same error

    def is_replicable(self) -> bool:
        """Return False: it belongs into the process that has the device."""
        return False

    def __iter__(self) -> Iterator[Any]:
        """Yield the items on the device."""
        for item in self.parent:
            yield with_tensors(item, self._moved)

    def _moved(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(self.device, non_blocking=self.non_blocking)

    def __len__(self) -> int:
        """Return the parent's length."""
        return length_of(self, self.parent)
