"""Between arrays and tensors: a recipe knows arrays, users get tensors of the same memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ..core import Sample
from ..realizing import Realized, Transform


def as_tensors(thing: Any) -> Any:
    """Return a batch or sample with a tensor, of the same memory, for each realized array."""
    return _changed(thing, _tensor_of)


def applied(instructions: Sequence[Transform], thing: Any) -> Any:
    """Return what the instructions make of one sample, with tensors in it."""
    items = [as_arrays(thing)]
    for instruction in instructions:
        items = instruction(items)
    return as_tensors(items[0])


def as_arrays(thing: Any) -> Any:
    """Return a batch or sample with a realized array, of the same memory, for each tensor."""
    return _changed(thing, _realized_of)


_PLAIN = frozenset({int, float, str, bytes, bool, list, tuple, torch.Tensor, type(None)})


def _changed(thing: Any, change: Any) -> Any:
    if type(thing) in _PLAIN:  # asked first: to be no mapping takes longer to tell
        return thing
    if isinstance(thing, Realized):
        return change(thing)
    if not isinstance(thing, Mapping):
        return thing
    changed = {key: change(value) for key, value in thing.items()}
    if all(changed[key] is value for key, value in thing.items()):
        return thing
    return thing.replace(data=changed) if isinstance(thing, Sample) else changed


def _tensor_of(value: Any) -> Any:
    return torch.from_numpy(value.array) if isinstance(value, Realized) else value


def _realized_of(value: Any) -> Any:
    return Realized(value.numpy()) if isinstance(value, torch.Tensor) else value
