"""Keep items in memory for the next epoch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import Any, ClassVar

from ...core import Sample
from ...core.call_site import warn
from ...core.errors import GraphError
from ...datapipes.datapipe import DataPipe, Running, first_random_pipe, length_of
from ...datapipes.epoch import SeedStamper
from ...datapipes.tensors import bytes_of
from ...graph import Pipe, describe, walk
from ...spatial import LazyPatch, TransformChain
from ...spatial.lazy.lazy_patch import patches_of
from ...spatial.lazy.stack import StackedPatch
from .items import Cycler

MEGABYTE = 1024 * 1024


def limit_in_bytes(size: float | None) -> float:
    """Return a limit given in megabytes in bytes; infinity for None."""
    if size is None:
        return float("inf")
    if not size > 0:
        raise ValueError(f"size is a number of megabytes above 0, got {size}")
    return size * MEGABYTE


class InMemoryCacheHolder(Running, DataPipe, form="in_memory_cache"):
    """Keep the last items of the first pass in memory, and yield them from there in later ones.

    Every pass yields the same objects: do not change them in place. Only samples are new objects
    with the number of the epoch, so that later pipes draw anew. Kept items are not sent to
    workers: each worker keeps its own, and then stays for the next epoch. An unfinished pass
    keeps nothing. The parent has to yield the same items in every pass: put random pipes
    (``shuffle``, ``lazy_patch``, ``augment``) after the cache. Samples with draws are refused by a
    ``GraphError``: they differ in every epoch.

    ``size`` is the number of megabytes that items may take, with the data of their arrays and
    tensors; None for no limit. If they take more, the first items are made anew in each pass, so
    that the parent is not read beyond them.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> kept = IterableWrapper(range(3)).in_memory_cache(size=5)
    >>> list(kept), list(kept)
    ([0, 1, 2], [0, 1, 2])
    """

    keeps_items: ClassVar[bool] = True
    """In a loader, earlier pipes get the number of the first epoch in every epoch."""
    outlives_epochs: ClassVar[bool] = True
    """The process that runs it, where that is a worker, stays from epoch to epoch."""
    running = ("_items", "_before")
    _items: deque[Any] | None
    _before: int

    def __init__(self, source_dp: Pipe, size: float | None = None) -> None:
        super().__init__(source_dp)
        self.most_bytes = limit_in_bytes(size)
        drawing = first_random_pipe(source_dp)
        if drawing is not None:
            name = describe(drawing)
            msg = f"{name} is drawn anew in every epoch, so its result cannot be cached"
            do = "Put in_memory_cache() before it, or leave it out: decoded chunks are kept anyway."
            raise GraphError(msg, do=do).at(self.origin)
        for pipe in walk(source_dp):
            if hasattr(type(pipe), "set_seed") and not isinstance(pipe, (SeedStamper, Cycler)):
                text = f"in_memory_cache() keeps the order that {describe(pipe)} draws in the first"
                warn(f"{text} pass; put it after the cache.", UserWarning, self.origin)
        self.fresh()

    def fresh(self) -> None:
        self._items, self._before = None, 0

    def __iter__(self) -> Iterator[Any]:
        if self._items is None:
            yield from self._first_pass()
            return
        run = self._run()
        # Not one more than is needed: the parent may take long to make it.
        yield from islice(self.parent, self._before)
        for item in self._items:
            yield _of_run(item, run) if run is not None else item

    def _run(self) -> tuple[int, int] | None:
        """Return seed and epoch of this pass, if samples come in."""
        sources = [pipe for pipe in walk(self.parent) if isinstance(pipe, SeedStamper)]
        run = [source.coming_run() for source in sources][:1]
        for source in sources if self._before == 0 else ():
            source.skip_run()  # as it is not iterated
        return run[0] if run else None

    def _first_pass(self) -> Iterator[Any]:
        items: deque[tuple[Any, int]] = deque()
        total = before = 0
        for item in self.parent:
            size = bytes_of(item)
            items.append((item, size))
            total += size
            while total > self.most_bytes:
                total -= items.popleft()[1]
                before += 1
            yield item
        self._items, self._before = deque(item for item, _ in items), before

    def __len__(self) -> int:
        """Return the parent's length, or the number of items of the first pass."""
        if self._items is not None:
            return self._before + len(self._items)
        try:
            return length_of(self, self.parent)
        except TypeError:
            msg = "InMemoryCacheHolder has no len(): this instance doesn't have valid length until "
            raise TypeError(msg + "the cache is loaded.") from None


def _of_run(item: Any, run: tuple[int, int]) -> Any:
    """Return a sample as it would be in another epoch; other items as they are."""
    if not isinstance(item, Sample):
        return item
    # Volumes of a sample share a plan.
    plans: dict[int, TransformChain] = {}
    lazy = {key: _patch_of_run(one, run, plans) for key, one in patches_of(item).items()}
    return item.replace(data={**dict(item), **lazy}, seed=run[0], epoch=run[1])


def _patch_of_run(
    patch: LazyPatch, run: tuple[int, int], plans: dict[int, TransformChain]
) -> LazyPatch:
    """Return a patch whose plan, or whose members' plans, draw for another epoch."""
    if isinstance(patch, StackedPatch):
        return patch.with_members([_patch_of_run(one, run, plans) for one in patch.members])
    old = patch.pending
    new = plans.setdefault(id(old), replace(old, seed=run[0], epoch=run[1]))
    return patch.with_pending(new)
