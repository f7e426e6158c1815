"""Map-style pipes: items by key, kept in memory, or column by column; and torch's own."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, ClassVar

from torch.utils.data import IterDataPipe
from torch.utils.data import MapDataPipe as MapDataPipe
from torch.utils.data.datapipes.map import *  # noqa: F403

from ...core.call_site import warn
from ...core.locks import ForkSafeLock
from ...datapipes.datapipe import PipeBase, Running, length_of
from ...datapipes.tensors import bytes_of
from ...graph import Traits
from .branches import kept_columns
from .functions import function
from .in_memory_cache import limit_in_bytes


class MapPipe(PipeBase, MapDataPipe[Any]):
    """A map-style pipe that remembers where the user wrote it."""

    traits: ClassVar[Traits] = Traits()  # read by rewrites and by the cut

    def __len__(self) -> int:
        return length_of(self, self.parent)


class IterToMapConverter(Running, MapPipe, form="to_map_datapipe", to=IterDataPipe):
    """Hold the items of a pipe by key; they are loaded at the first access.

    ``key_value_fn`` returns key and value of an item; without it every item is such a pair. The
    later value of a repeated key replaces the earlier one, with a warning. An unknown key is an
    ``IndexError``.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> ages = IterableWrapper([("a.nii", 44), ("b.nii", 61)]).to_map_datapipe()
    >>> ages["b.nii"], len(ages)
    (61, 2)
    """

    running = ("_map",)
    _map: dict[Hashable, Any] | None

    def __init__(
        self, datapipe: Any, key_value_fn: Callable[[Any], tuple[Hashable, Any]] | None = None
    ) -> None:
        super().__init__(datapipe)
        if not isinstance(datapipe, IterDataPipe):
            msg = f"IterToMapConverter can only apply on IterDataPipe, but found {type(datapipe)}"
            raise TypeError(msg)
        self.key_value_fn = None if key_value_fn is None else function("key_value_fn", key_value_fn)
        self.fresh()

    def fresh(self) -> None:
        self._map = None

    def _load_map(self) -> dict[Hashable, Any]:
        mapping: dict[Hashable, Any] = {}
        for item in self.parent:
            pair = item if self.key_value_fn is None else self.key_value_fn(item)
            try:
                key, value = pair
            except TypeError:
                msg = f"Cannot convert dictionary update element {type(pair)} ({pair}) to a pair"
                raise TypeError(msg) from None
            except ValueError:
                msg = f"dictionary update sequence element has length {len(pair)}, 2 is required"
                raise ValueError(msg) from None
            if key in mapping:
                text = f"Found duplicate key {key!r}. Please check your `key_value_fn`"
                warn(text, UserWarning, self.origin)
            mapping[key] = value
        self._map = mapping
        return mapping

    def __getitem__(self, index: Any) -> Any:
        mapping = self._load_map() if self._map is None else self._map
        try:
            return mapping[index]
        except KeyError:
            raise IndexError(f"Index {index!r} is invalid for IterToMapConverter") from None

    def __len__(self) -> int:
        if self._map is not None:
            return len(self._map)
        try:
            return length_of(self, self.parent)
        except TypeError:
            text = "Data from prior DataPipe are loaded to get length of IterToMapConverter before "
            warn(text + "execution of the pipeline. Please consider removing len().", UserWarning)
            return len(self._load_map())


class InMemoryCacheHolder(Running, MapPipe, form="in_memory_cache"):
    """Keep each requested item in memory.

    The same object is returned each time: do not change it in place. Kept items are not sent to
    workers. ``size`` is the number of megabytes that they may take, with the data of their arrays
    and tensors; None for no limit. The oldest make room, and are made anew at the next request.

    Examples
    --------
    >>> from voxpipe.datapipes.map import SequenceWrapper
    >>> kept = SequenceWrapper(range(3)).map(str).in_memory_cache()
    >>> kept[1] is kept[1]
    True
    """

    outlives_epochs: ClassVar[bool] = True
    """The process that runs it, where that is a worker, stays from epoch to epoch."""
    running = ("_items", "_bytes", "_lock")
    _items: dict[Any, tuple[Any, int]]
    _bytes: int

    def __init__(self, source_dp: MapDataPipe[Any], size: float | None = None) -> None:
        super().__init__(source_dp)
        self.most_bytes = limit_in_bytes(size)
        self.fresh()

    def fresh(self) -> None:
        self._items, self._bytes = {}, 0
        self._lock = ForkSafeLock()

    def __getitem__(self, index: Any) -> Any:
        with self._lock:
            if index in self._items:
                return self._items[index][0]
        item = self.parent[index]
        size = bytes_of(item)
        with self._lock:
            # Another thread may have made it meanwhile: all get the same one.
            if index not in self._items and size <= self.most_bytes:
                self._items[index] = (item, size)
                self._bytes += size
                while self._bytes > self.most_bytes:
                    self._bytes -= self._items.pop(next(iter(self._items)))[1]
            return self._items.get(index, (item, size))[0]


class UnZipper(MapPipe, form="unzip"):
    """Return a list of map-style pipes, one per column, as the iterable pipe of this name.

    Examples
    --------
    >>> from voxpipe.datapipes.map import SequenceWrapper
    >>> numbers, letters = SequenceWrapper([(0, "a"), (1, "b")]).unzip(2)
    >>> numbers[1], letters[0], len(letters)
    (1, 'a', 2)
    """

    def __new__(
        cls,
        source_datapipe: MapDataPipe[Any],
        sequence_length: int,
        columns_to_skip: Sequence[int] | None = None,
    ) -> Any:
        columns = kept_columns(sequence_length, columns_to_skip)
        return [Column(source_datapipe, column) for column in columns]


class Column(MapPipe):
    """One column of a map-style pipe."""

    form_name = "unzip"

    def __init__(self, parent: MapDataPipe[Any], column: int) -> None:
        super().__init__(parent)
        self.column = column

    def describe(self) -> str:
        return f"unzip(…)[{self.column}]"

    def __getitem__(self, index: Any) -> Any:
        return self.parent[index][self.column]
