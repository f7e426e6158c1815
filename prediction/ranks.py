"""Ranks that predict together: each runs the model on its share, the first one stitches."""

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
    """Which of how many processes this is."""

    rank: int = 0
    count: int = 1

    @classmethod
    def current(cls) -> Ranks:
        """Return what torch's process group says; one alone where there is none."""
        if dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        return cls()

    @property
    def is_first(self) -> bool:
        """Whether this is the one that stitches."""
        return self.rank == 0

    def refuse_alike(self, loader: DataLoader2) -> None:
        """Raise GraphError for a loader that every rank would run whole."""
        if without_parts(loader.reading_service, loader.datapipe):
            msg = f"each of {self.count} ranks would run all windows of the loader"
            do = "Give it a DistributedReadingService; or give the chain, which is divided here."
            raise GraphError(msg, do=do)

    def gather(self, items: Iterable[Any]) -> Iterator[Any]:
        """Yield, on the first rank, the items of all ranks; nothing on the others.

        In rounds: each rank has one or none, until none has one. One rank that fails ends the
        others by the timeout of the group.
        """
        if self.count == 1:
            yield from items
            return
        source = iter(items)
        while True:
            item = next(source, None)
            every: list[Any] | None = [None] * self.count if self.is_first else None
            dist.gather_object(item, every)
            going: list[Any] = [any(one is not None for one in every or ())]
            dist.broadcast_object_list(going)
            if not going[0]:
                return
            yield from (one for one in every or () if one is not None)
