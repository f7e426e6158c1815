"""Keep items in memory for the next epoch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, ClassVar

from ....core.errors import GraphError
from ....core.origin import warn
from ....graph import Pipe, Traits, describe, walk
from ...datapipe import length_of, offered
from .footprint import bytes_of
from .running import Running

MEGABYTE = 1024 * 1024


def limit_of(size: float | None) -> float:
    """Return a limit given in megabytes in bytes; infinity for None.

    Raises
    ------
    ValueError
        If it is not above 0.
    """
    if size is None:
        return float("inf")
    if not size > 0:
        msg = f"size is a number of megabytes above 0, got {size}"
        raise ValueError(msg)
    return size * MEGABYTE


@offered("in_memory_cache")
class InMemoryCacheHolder(Running):
    """Keep the last items of the first pass in memory, and yield them from there in later ones.

    Parameters
    ----------
    source_dp
        The parent. It has to yield the same items in every pass: put what draws at random
        (``shuffle``) after the cache.
    size
        Megabytes that items may take, with the data of their arrays and tensors; None for any
        number. If they take more it is the first ones that are made anew in each pass, so that
        the parent is not read beyond them.

    Notes
    -----
    The very same objects are yielded in every pass: do not change them in place. What was kept
    does not travel to a worker; each keeps its own. An unfinished pass keeps nothing.

    Raises
    ------
    GraphError
        If samples with a seed come in, which differ in every epoch. Decoded chunks of volumes
        are kept anyway.
    ValueError
        If the size is not above 0.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> kept = IterableWrapper(range(3)).in_memory_cache(size=5)
    >>> list(kept), list(kept)
    ([0, 1, 2], [0, 1, 2])
    """

    traits: ClassVar[Traits] = Traits()
    running = ("_kept", "_before")
    _kept: deque[Any] | None
    _before: int

    def __init__(self, source_dp: Pipe, size: float | None = None) -> None:
        super().__init__()
        self.parent = source_dp
        self.most_bytes = limit_of(size)
        for pipe in walk(source_dp):
            if hasattr(type(pipe), "begin"):
                msg = f"in_memory_cache() would keep what {describe(pipe)} has drawn for one epoch"
                do = "Leave it out: chunks that were decoded are kept, and plans cost nothing."
                raise GraphError(msg, do=do).at(self.origin)
            if hasattr(type(pipe), "set_seed"):
                text = f"in_memory_cache() keeps the order that {describe(pipe)} draws in the first"
                warn(f"{text} pass; put it after the cache.", UserWarning, self.origin)
        self.fresh()

    def fresh(self) -> None:
        """Begin with nothing kept."""
        self._kept, self._before = None, 0

    def __iter__(self) -> Iterator[Any]:
        """Yield the items, those that were kept last."""
        if self._kept is None:
            yield from self._first_pass()
            return
        # Not one more than is needed: the parent may take long to make it.
        yield from islice(self.parent, self._before)
        yield from self._kept

    def _first_pass(self) -> Iterator[Any]:
        kept: deque[tuple[Any, int]] = deque()
        total = before = 0
        for item in self.parent:
            size = bytes_of(item)
            kept.append((item, size))
            total += size
            while total > self.most_bytes:
                total -= kept.popleft()[1]
                before += 1
            yield item
        self._kept, self._before = deque(item for item, _ in kept), before

    def __len__(self) -> int:
        """Return the parent's length, or what was counted in the first pass."""
        if self._kept is not None:
            return self._before + len(self._kept)
        try:
            return length_of(self, self.parent)
        except TypeError:
            msg = "InMemoryCacheHolder has no len(): it doesn't have valid length until the cache "
            raise TypeError(msg + "is loaded") from None
