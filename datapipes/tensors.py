"""Tensors and bytes in items of any shape: read, count, move, pin."""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..core import Sample
from ..core.call_site import shorten
from ..core.errors import NoDevice
from ..core.validate import validate_int


def map_tensors(item: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return the item with every tensor in it changed.

    Mappings, samples, lists and tuples, named ones too, are gone into; other things stay.
    """
    if isinstance(item, torch.Tensor):
        return change(item)
    if isinstance(item, Mapping):
        fields = {key: map_tensors(value, change) for key, value in item.items()}
        return item.replace(data=fields) if isinstance(item, Sample) else _like(item, fields)
    if isinstance(item, (list, tuple)):
        parts = [map_tensors(value, change) for value in item]
        if hasattr(item, "_fields"):
            return type(item)(*parts)
        return _like(item, parts)
    return item


def _like(item: Any, parts: Any) -> Any:
    try:
        return type(item)(parts)
    except TypeError:  # a class of its own, whose constructor wants something else
        return parts


def parse_device(call: str, device: Any) -> torch.device:
    """Return the device that an argument names."""
    choices = '"cpu", "cuda", "cuda:1" or another torch.device'
    try:
        return torch.device(device)
    except TypeError:
        raise TypeError(f"device of {call}() is {choices}, got {shorten(device)}") from None
    except RuntimeError as error:
        msg = f"{call}({shorten(device)}) names no device that torch has here"
        raise NoDevice(msg, do=f"Give {choices}.") from error


def need_cuda(call: str, device: torch.device | None = None, do: str = "") -> None:
    """Raise NoDevice if CUDA, or the one device of it, is not there."""
    if not torch.cuda.is_available():
        msg = f"``{call}`` can only be used when CUDA is available"
        raise NoDevice(msg, do=do or f"Leave .{call}() out where there is no GPU.")
    there = torch.cuda.device_count()
    if device is not None and (device.index or 0) >= there:
        msg = f"{call}: there is no {device}, only {there} CUDA devices"
        raise NoDevice(msg, do="Choose one of them, or see CUDA_VISIBLE_DEVICES.")


BUFFER_BYTES = 256 * 2**20  # that may wait in one pipe, by default
# The limit if more is an error. A full buffer of 256 MiB only makes a thread wait. If the reader
# itself would have to wait, this limit ends the pass or drops an item. It has to catch two branches
# that drift apart, not a working pass.
WAITING_BYTES = 4 * BUFFER_BYTES
_LEAVES = frozenset({int, float, bool, str, type(None)})
_SEQUENCES = (list, tuple, set, frozenset, deque)


def bytes_of(item: Any) -> int:
    """Return the bytes of an item, the data of its arrays and tensors included.

    Mappings, sequences and dataclasses count with their contents, each object once. A lazy
    patch counts as a description, as its voxels have not been read.

    Examples
    --------
    >>> import numpy as np, torch
    >>> bytes_of({"image": np.zeros((10, 100)), "label": torch.zeros(1000)}) >= 8000 + 4000
    True
    >>> bytes_of([]) < 100
    True
    """
    total, ids, waiting = 0, set(), [item]
    while waiting:
        thing = waiting.pop()
        if type(thing) in _LEAVES:  # most objects, without contents
            total += sys.getsizeof(thing)
            continue
        if id(thing) in ids:
            continue
        ids.add(id(thing))
        # getsizeof() of an array may include its data or not, so only its data are counted.
        data = _data_of(thing)
        total += data if isinstance(data, int) else sys.getsizeof(thing, 0)
        if isinstance(thing, Mapping):
            waiting += thing.keys()
            waiting += thing.values()
        elif isinstance(thing, _SEQUENCES):
            waiting += thing
        elif dataclasses.is_dataclass(thing) and not hasattr(type(thing), "provenance"):
            waiting += [getattr(thing, field.name, None) for field in dataclasses.fields(thing)]
    return total


def buffer_limit(buffer_bytes: int | None, *, no_limit: bool = False) -> int | None:
    """Return how many bytes may wait; None for any number."""
    if buffer_bytes is not None:
        do = "or None for the default"
        return validate_int("buffer_bytes", buffer_bytes, least=1, unit="bytes", do=do)
    return None if no_limit else WAITING_BYTES


def _data_of(thing: Any) -> Any:
    """Return the size of the data of an array or tensor; None for other things."""
    if isinstance(thing, type):
        return None
    try:
        return getattr(thing, "nbytes", None)
    except (NotImplementedError, RuntimeError):  # a sparse tensor, whose parts are tensors
        return int(thing._nnz()) * int(thing.element_size())
