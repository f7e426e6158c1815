"""How many bytes an item takes: what bounds buffers and caches."""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any

BUFFER_BYTES = 256 * 2**20
"""Bytes that items which wait in one pipe may take, unless told otherwise."""
_PLAIN = frozenset({int, float, bool, str, type(None)})
_SEQUENCES = (list, tuple, set, frozenset, deque)


def bytes_of(item: Any) -> int:
    """Return the bytes of an item, the data of its arrays and tensors included.

    Mappings, sequences and dataclasses count with what is in them, each thing once. A lazy
    patch counts as a description, as its voxels have not been read.

    Examples
    --------
    >>> import numpy as np, torch
    >>> bytes_of({"image": np.zeros((10, 100)), "label": torch.zeros(1000)}) >= 8000 + 4000
    True
    >>> bytes_of([]) < 100
    True
    """
    total, seen, waiting = 0, set(), [item]
    while waiting:
        thing = waiting.pop()
        if type(thing) in _PLAIN:  # most of what there is, and nothing is in it
            total += sys.getsizeof(thing)
            continue
        if id(thing) in seen:
            continue
        seen.add(id(thing))
        # What an array owns may be part of its own size or not: only its data are counted.
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


def _data_of(thing: Any) -> Any:
    """Return the size of what an array or tensor holds; None for other things."""
    if isinstance(thing, type):
        return None
    try:
        return getattr(thing, "nbytes", None)
    except (NotImplementedError, RuntimeError):  # a sparse tensor, whose parts lie elsewhere
        return int(thing._nnz()) * int(thing.element_size())
