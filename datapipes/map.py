"""Map-style pipes, loaded at their first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..first_use import at_first_use

if TYPE_CHECKING:
    from .general.map.from_iter import IterToMapConverter
    from .general.map.in_memory_cache import InMemoryCacheHolder
    from .general.map.torch_pipes import (
        Batcher,
        Concater,
        MapDataPipe,
        Mapper,
        SequenceWrapper,
        Shuffler,
        Zipper,
    )
    from .general.map.unzip import UnZipper

_HOMES = {
    "general.map.from_iter": ("IterToMapConverter",),
    "general.map.in_memory_cache": ("InMemoryCacheHolder",),
    "general.map.torch_pipes": (
        "Batcher",
        "Concater",
        "MapDataPipe",
        "Mapper",
        "SequenceWrapper",
        "Shuffler",
        "Zipper",
    ),
    "general.map.unzip": ("UnZipper",),
}
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
__getattr__, __dir__ = at_first_use(globals(), _HOMES)
