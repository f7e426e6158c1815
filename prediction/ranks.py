"""Ranks that predict together: each runs the model on its windows, the first one stitches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from ..core.errors import GraphError
from ..dataloader2 import DataLoader2
from ..reading_services.distributed import without_parts


@dataclass(frozen=True)
class Ranks:
    """Number of this process, and of all processes."""

    rank: int = 0
    count: int = 1

    @classmethod
    def current(cls) -> Ranks:
        """Return the rank in torch's process group; without a group a single rank."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    @property
    def is_first(self) -> bool:
        """Whether this rank stitches."""
        return self.rank == 0

    def refuse_alike(self, loader: DataLoader2) -> None:
        """Raise GraphError for a loader that does not divide its windows between ranks."""
        if without_parts(loader.reading_service, loader.datapipe):
            msg = f"each of {self.count} ranks would run all windows of the loader"
            do = "Give it a DistributedReadingService, or pass the chain, which predict divides."
            raise GraphError(msg, do=do)

    def gather(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the items of all ranks on the first rank, and nothing on the others.

        Each round gathers at most one item per rank; the last round has none. If a rank fails,
        the group's timeout ends the others.
        """
        if self.count == 1:
            yield from items
            return
        source = iter(items)
        while True:
            item = next(source, None)
            every: list[Any] | None = [None] * self.count if self.is_first else None
            dist.gather_object(item, every)
            present = [each for each in every or () if each is not None]
            has_items: list[Any] = [bool(present)]
            dist.broadcast_object_list(has_items)
            if not has_items[0]:
                return
            yield from present
