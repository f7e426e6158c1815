"""A whole graph in one worker: the scheme for graphs that cannot be cut."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data.graph_settings import apply_sharding

from ..core import Stream
from ..datapipes.epoch import set_epoch
from .seeding import seeded_globals


class Replica:
    """A whole graph, run on this worker's share of the items."""

    def __init__(self, graph: Any, worker: int, workers: int, *, shards: bool) -> None:
        self.graph = graph
        self.worker = worker
        self.workers = workers
        self.shards = shards
        self._items: Iterator[Any] | None = None

    def run(self, index: int, seed: int, epoch: int) -> Any:
        """Return this worker's next item; StopIteration after the last."""
        if self._items is None:
            self._start(seed, epoch)
        assert self._items is not None
        # Which worker draws enters here: a share has no numbers of its own but by its owner.
        key = (self.workers, self.worker, index)
        stream = Stream(seed, epoch, key, "user functions")
        with seeded_globals(stream.integer()):
            return next(self._items)

    def _start(self, seed: int, epoch: int) -> None:
        set_epoch(self.graph, seed, epoch)
        if self.shards:
            apply_sharding(self.graph, self.workers, self.worker)
        self._items = iter(self.graph)
