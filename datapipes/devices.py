"""Tensors in items of any shape: move them, or pin their memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..core import Sample
from ..core.errors import NoDevice
from ..core.origin import shorten


def with_tensors(item: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return the item with every tensor in it changed.

    Mappings, samples, lists and tuples, named ones too, are gone into; other things stay.

    Examples
    --------
    >>> with_tensors({"a": [torch.ones(1)], "b": "word"}, torch.neg)
    {'a': [tensor([-1.])], 'b': 'word'}
    """
    if isinstance(item, torch.Tensor):
        return change(item)
    if isinstance(item, Mapping):
        fields = {key: with_tensors(value, change) for key, value in item.items()}
        return item.replace(data=fields) if isinstance(item, Sample) else _like(item, fields)
    if isinstance(item, (list, tuple)):
        parts = [with_tensors(value, change) for value in item]
        if hasattr(item, "_fields"):
            return type(item)(*parts)
        return _like(item, parts)
    return item


def _like(item: Any, parts: Any) -> Any:
    try:
        return type(item)(parts)
    except TypeError:  # a class of its own, whose constructor wants something else
        return parts


def named_device(call: str, device: Any) -> torch.device:
    """Return the device that an argument names.

    Raises
    ------
    NoDevice
        It names none that torch knows. This is a ``RuntimeError``, as torch's own error is.
    TypeError
        It is nothing that could name one.

    Examples
    --------
    >>> named_device("to_device", "cuda:1")
    device(type='cuda', index=1)
    """
    known = '"cpu", "cuda", "cuda:1" or another torch.device'
    try:
        return torch.device(device)
    except TypeError:
        raise TypeError(f"device of {call}() is {known}, got {shorten(device)}") from None
    except RuntimeError as error:
        msg = f"{call}({shorten(device)}) names no device that torch has here"
        raise NoDevice(msg, do=f"Give {known}.") from error


def need_cuda(call: str, device: torch.device | None = None, do: str = "") -> None:
    """Raise NoDevice if CUDA, or the one device of it, is not there."""
    if not torch.cuda.is_available():
        msg = f"``{call}`` can only be used when CUDA is available"
        raise NoDevice(msg, do=do or f"Leave .{call}() out where there is no GPU.")
    there = torch.cuda.device_count()
    if device is not None and (device.index or 0) >= there:
        msg = f"{call}: there is no {device}, only {there} CUDA devices"
        raise NoDevice(msg, do="Choose one of them, or see CUDA_VISIBLE_DEVICES.")
