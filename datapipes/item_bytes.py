"""How many bytes an item takes: what bounds buffers and caches."""

from __future__ import annotations

import dataclasses
import sys
from collections import deque
from collections.abc import Mapping
from typing import Any

from ..core.whole import whole

BUFFER_BYTES = 256 * 2**20
"""Bytes that items which wait in one pipe may take, unless told otherwise."""
WAITING_BYTES = 4 * BUFFER_BYTES
"""Bytes that may wait in one pipe where more of them is an error, unless told otherwise.

A full buffer of 256 MiB makes a thread wait, and nobody loses anything. Where nothing can wait, as
the one who reads is the one who would have to stop, the limit ends the pass or drops an item: it
is to meet a mistake, two branches that drift apart, and not a pass that works on a usual machine.
"""
_LEAVES = frozenset({int, float, bool, str, type(None)})
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
        if type(thing) in _LEAVES:  # most of what there is, and nothing is in it
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


def limit_of_bytes(given: int | None, *, unbounded: bool = False) -> int | None:
    """Return how many bytes may wait; None for any number.

    Parameters
    ----------
    given
        ``buffer_bytes`` as the user wrote it; None where it was left out.
    unbounded
        Whether the user asked for any number of items: then bytes are counted only if told.

    Raises
    ------
    TypeError, ValueError
        It is no whole number of at least 1.
    """
    if given is not None:
        return whole("buffer_bytes", given, least=1, unit="bytes", do="or None for the default")
    return None if unbounded else WAITING_BYTES


def _data_of(thing: Any) -> Any:
    """Return the size of what an array or tensor holds; None for other things."""
    if isinstance(thing, type):
        return None
    try:
        return getattr(thing, "nbytes", None)
    except (NotImplementedError, RuntimeError):  # a sparse tensor, whose parts lie elsewhere
        return int(thing._nnz()) * int(thing.element_size())
