"""Map-style pipes. Importing this registers the chained forms on every torch datapipe."""

from .from_iter import IterToMapConverter
from .in_memory_cache import InMemoryCacheHolder
from .torch_pipes import (
    Batcher,
    Concater,
    MapDataPipe,
    Mapper,
    SequenceWrapper,
    Shuffler,
    Zipper,
)
from .unzip import UnZipper

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
