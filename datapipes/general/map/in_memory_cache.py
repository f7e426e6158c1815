"""Keep items of a map-style pipe in memory."""

from __future__ import annotations

from typing import Any, ClassVar

from torch.utils.data import MapDataPipe

from ....core.turns import ForkSafeLock
from ...datapipe import length_of
from ...forms import offered
from ...item_bytes import bytes_of
from ..items.in_memory_cache import limit_of
from .pipe import MapPipe


@offered("in_memory_cache")
class InMemoryCacheHolder(MapPipe):
    """Keep each item that was asked for in memory.

    Parameters
    ----------
    source_dp
        The parent.
    size
        Megabytes that items may take, with the data of their arrays and tensors; None for any
        number. The oldest make room, and are made anew when they are asked for.

    Notes
    -----
    The very same object is returned each time: do not change it in place. What was kept does
    not travel to a worker.

    Raises
    ------
    ValueError
        If the size is not above 0.

    Examples
    --------
    >>> from voxpipe.datapipes.map import SequenceWrapper
    >>> kept = SequenceWrapper(range(3)).map(str).in_memory_cache()
    >>> kept[1] is kept[1]
    True
    """

    outlives_epochs: ClassVar[bool] = True
    """The process that runs it, where that is a worker, stays from epoch to epoch."""
    running = ("_kept", "_bytes", "_lock")
    _kept: dict[Any, tuple[Any, int]]
    _bytes: int

    def __init__(self, source_dp: MapDataPipe[Any], size: float | None = None) -> None:
        super().__init__()
        self.parent = source_dp
        self.most_bytes = limit_of(size)
        self.fresh()

    def fresh(self) -> None:
        """Begin with nothing kept."""
        self._kept, self._bytes = {}, 0
        self._lock = ForkSafeLock()

    def __getitem__(self, index: Any) -> Any:
        """Return an item, kept or new."""
        with self._lock:
            if index in self._kept:
                return self._kept[index][0]
        item = self.parent[index]
        size = bytes_of(item)
        with self._lock:
            # Another thread may have made it meanwhile: all get the same one.
            if index not in self._kept and size <= self.most_bytes:
                self._kept[index] = (item, size)
                self._bytes += size
                while self._bytes > self.most_bytes:
                    self._bytes -= self._kept.pop(next(iter(self._kept)))[1]
            return self._kept.get(index, (item, size))[0]

    def __len__(self) -> int:
        """Return the parent's length."""
        return length_of(self, self.parent)
