"""How many items a graph yields, asked of each pipe once.

A pipe asks its parents for their length, and these theirs: where several pipes read one, that is
asked once for each way to it, 2**n times behind *n* diamonds.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterDataPipe

from .node import Pipe, parents_of, swap_parents
from .walk import walk


class _Counted(IterDataPipe[Any]):
    """Stands for a parent whose length is known, or why it is not."""

    def __init__(self, length: int | Exception) -> None:
        super().__init__()
        self._length = length

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("this stands for a length, and has no items")

    def __len__(self) -> int:
        if isinstance(self._length, Exception):
            raise self._length
        return self._length


def item_count(sink: Pipe) -> int:
    """Return ``len(sink)``, in a time that grows with the number of pipes.

    Raises
    ------
    TypeError
        If it is not known.
    Exception
        Whatever a pipe raises that is asked for its length.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> pipe = IterableWrapper(range(5))
    >>> for _ in range(40):
    ...     pipe = pipe.map(str).zip(pipe)
    >>> item_count(pipe)
    5
    """
    found: dict[int, int | Exception] = {}
    for pipe in walk(sink):
        found[id(pipe)] = _asked(pipe, [_Counted(found[id(p)]) for p in parents_of(pipe)])
    length = found[id(sink)]
    if isinstance(length, Exception):
        raise length
    return length


def _asked(pipe: Any, parents: list[Pipe]) -> int | Exception:
    try:
        return len(_seen_on(pipe, parents) if parents else pipe)
    except (TypeError, NotImplementedError) as error:
        return error
    except Exception:  # it looks for more than a length in its parents
        pass
    try:
        return len(pipe)
    except Exception as error:
        return error


def _seen_on(pipe: Any, parents: list[Pipe]) -> Any:
    """Return something with the length that ``pipe`` has on other parents.

    Not a copy as others are: the pass of ``pipe`` may be running, and torch's pipes clear their
    buffers when a copy, which shares them, is dropped.
    """
    kind: Any = type(pipe)
    twin: Any = object.__new__(_without_end(kind))
    vars(twin).update(vars(pipe))
    old = parents_of(pipe)
    swap_parents(twin, {id(a): b for a, b in zip(old, parents, strict=True)})
    return twin


@functools.lru_cache(maxsize=256)
def _without_end(kind: type) -> type:
    """Return the class without what it does when it is dropped."""
    return type(kind)(kind.__name__, (kind,), {"__del__": lambda self: None})
