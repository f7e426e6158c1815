"""Map-style pipes, loaded at their first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..first_use import at_first_use

if TYPE_CHECKING:
    from .general.map_pipe import (
        Batcher,
        Concater,
        InMemoryCacheHolder,
        IterToMapConverter,
        MapDataPipe,
        Mapper,
        SequenceWrapper,
        Shuffler,
        UnZipper,
        Zipper,
    )

__all__ = [
    "Batcher",
    "Concater",
    "InMemoryCacheHolder",
    "IterToMapConverter",
    "MapDataPipe",
    "Mapper",
    "SequenceWrapper",
    "Shuffler",
    "UnZipper",
    "Zipper",
]
__getattr__, __dir__ = at_first_use(globals(), {"general.map_pipe": tuple(__all__)})
