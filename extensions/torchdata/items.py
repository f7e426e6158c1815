"""Pipes that choose or number items: their first ones, again, parts of them."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import count as count_from
from itertools import islice
from typing import Any

from torch.utils.data import MapDataPipe

from ...core import Sample, Stream
from ...core.call_site import warn
from ...core.validate import validate_int
from ...datapipes.datapipe import DataPipe, PerItem, SameLength, length_of
from ...datapipes.epoch import seed_again
from ...graph import Pipe


class Header(SameLength, form="header"):
    """Yield the first ``limit`` items of the parent; None for all. No further item is read.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(range(10)).header(3))
    [0, 1, 2]
    """

    def __init__(self, source_datapipe: Pipe, limit: int | None = 10) -> None:
        super().__init__(source_datapipe)
        self.limit = None if limit is None else validate_int("limit", limit, least=0)

    def __iter__(self) -> Iterator[Any]:
        yield from islice(self.parent, self.limit)

    def __len__(self) -> int:
        """Return the limit, or the parent's length where that is shorter.

        If the parent has no length it is the limit, with a warning that it may be less.
        """
        # The words that tests of users of torchdata look for.
        subject = "The length of this HeaderIterDataPipe"
        try:
            length = length_of(self, self.parent)
        except TypeError as error:
            if self.limit is None:
                raise TypeError(f"{subject} cannot be determined. {error}") from None
            text = f"{subject} is inferred to be equal to its limit. "
            text += "It is less if the parent, whose length is not known, ends before."
            warn(text, UserWarning)
            return self.limit
        return length if self.limit is None else min(length, self.limit)


class LengthSetter(SameLength, form="set_length"):
    """Set the length of a parent without a known one: after ``filter``, for instance.

    All items of the parent are yielded, however many they are.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> len(IterableWrapper(range(10)).filter(bool).set_length(9))
    9
    """

    def __init__(self, source_datapipe: Pipe, length: int) -> None:
        super().__init__(source_datapipe)
        self.length = validate_int("length", length, least=0)

    def __iter__(self) -> Iterator[Any]:
        yield from self.parent

    def __len__(self) -> int:
        return self.length


class Cycler(SameLength, form="cycle"):
    """Yield all items of the parent ``count`` times; None for ever.

    A loader's seed covers every turn: random pipes above are seeded anew for each, so that
    turns differ and an epoch can be repeated and resumed. A parent without any item ends.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(range(3)).cycle(2))
    [0, 1, 2, 0, 1, 2]
    """

    def __init__(self, source_datapipe: Pipe, count: int | None = None) -> None:
        super().__init__(source_datapipe)
        self.count = None if count is None else validate_int("count", count, least=0)
        self._seed: int | None = None

    def set_seed(self, seed: int) -> Cycler:
        self._seed = seed
        return self

    def __iter__(self) -> Iterator[Any]:
        seed, self._seed = self._seed, None
        for turn in count_from() if self.count is None else range(self.count):
            if turn and seed is not None:
                seed_again(self.parent, Stream(seed, 0, (turn,), "cycle").integer())
            empty = True
            for item in self.parent:
                empty = False
                yield item
            if empty:
                return

    def __len__(self) -> int:
        """Return the items of all turns; TypeError if it cycles for ever."""
        if self.count is None:
            msg = "Cycler has no len(): this instance cycles forever, and therefore doesn't have "
            msg += "valid length"
            raise TypeError(msg)
        return self.count * length_of(self, self.parent)


class Repeater(SameLength, form="repeat"):
    """Yield each item of the parent ``times`` times (at least 2), one after the other.

    The very same object is yielded. Only a sample gets an identity of its own from the second
    time on, so that random pipes further down draw something else for it.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(range(3)).repeat(2))
    [0, 0, 1, 1, 2, 2]
    """

    def __init__(self, source_datapipe: Pipe, times: int) -> None:
        super().__init__(source_datapipe)
        self.times = validate_int("times", times, least=2)

    def __iter__(self) -> Iterator[Any]:
        for item in self.parent:
            for time in range(self.times):
                yield item.child(time) if time and isinstance(item, Sample) else item

    def __len__(self) -> int:
        return self.times * length_of(self, self.parent)


class _ColumnPipe(PerItem):
    """A pipe on columns of tuples and lists, or keys of mappings; it warns of missing columns."""

    def columns_of(self, item: Any) -> dict[Any, Any] | None:
        """Return an item's values by index or key; None, with a warning, if it has no columns."""
        if isinstance(item, (tuple, list)):
            return dict(enumerate(item))
        if isinstance(item, Mapping):
            return dict(item)
        text = "The next item was not an iterable and cannot be filtered, "
        text += "please be aware that no filter was done or new item created."
        warn(text, UserWarning, self.origin)
        return None

    def keys_of(self, item: Any, indices: Sequence[Any]) -> set[Any]:
        """Return keys, or indices from the beginning; warn if the item has nothing at one."""
        try:
            for index in indices:
                item[index]
        except (IndexError, KeyError):
            text = "At least one index in the filter is not present in the item being returned, "
            text += "please be aware that expected columns/keys may be missing."
            warn(text, UserWarning, self.origin)
        if isinstance(item, Mapping):
            return set(indices)
        return {i + len(item) if isinstance(i, int) and i < 0 else i for i in indices}


class Dropper(_ColumnPipe, form="drop"):
    """Leave out columns of tuples and lists, or keys of mappings.

    ``indices`` is one index or key, or a list of them; negative indices count from the end.
    Missing columns, and items without columns, cause one warning.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([(0, 10), (1, 11)]).drop(1))
    [(0,), (1,)]
    """

    def __init__(self, datapipe: Pipe, indices: Hashable | list[Hashable]) -> None:
        super().__init__(datapipe)
        self.indices = list(indices) if isinstance(indices, list) else [indices]

    def apply(self, item: Any) -> Any:
        columns = self.columns_of(item)
        if columns is None:
            return item
        keys = self.keys_of(item, self.indices)
        return _rebuild(item, {key: v for key, v in columns.items() if key not in keys})


class Slicer(_ColumnPipe, form="slice"):
    """Keep columns of tuples and lists, or keys of mappings.

    ``index`` is the start of a slice, or a list of indices or keys, kept in the order of the item.
    ``stop`` and ``step`` have no effect for a list, and for mappings. Missing columns, and items
    without columns, cause one warning.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> rows = IterableWrapper([(0, 10, 100), (1, 11, 111)])
    >>> list(rows.slice(0, 2)), list(rows.slice([2]))
    ([(0, 10), (1, 11)], [(100,), (111,)])
    """

    def __init__(
        self,
        datapipe: Pipe,
        index: Hashable | list[Hashable],
        stop: int | None = None,
        step: int | None = None,
    ) -> None:
        super().__init__(datapipe)
        self.index, self.stop, self.step = index, stop, step
        if isinstance(index, list) and (stop or step):
            text = "A list of indices was passed as well as a stop or step for the slice, these "
            text += "arguments can't be used together so only the indices list will be used."
            warn(text, UserWarning, self.origin)

    def apply(self, item: Any) -> Any:
        columns = self.columns_of(item)
        if columns is None:
            return item
        if isinstance(self.index, list):
            keys = self.keys_of(item, self.index)
        elif not isinstance(item, Mapping):
            return item[self.index : self.stop : self.step]
        elif self.index in columns:
            keys = {self.index}
        else:
            text = "Dictionaries are not sliced by steps, only direct index. "
            text += "Please be aware that no filter was done or new item created."
            warn(text, UserWarning, self.origin)
            return item
        return _rebuild(item, {key: v for key, v in columns.items() if key in keys})


class Enumerator(SameLength, form="enumerate"):
    """Yield ``(index, item)``, with indices from ``starting_index`` on.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper("ab").enumerate())
    [(0, 'a'), (1, 'b')]
    """

    def __init__(self, source_datapipe: Pipe, starting_index: int = 0) -> None:
        super().__init__(source_datapipe)
        self.starting_index = starting_index

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        yield from enumerate(self.parent, self.starting_index)


class IndexAdder(SameLength, form="add_index"):
    """Write the number of each item into it, under the key ``index_name``.

    Items are mappings, and do not change: the pipe yields a copy, and for a sample another sample.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([{"a": 1}, {"a": 2}]).add_index("order"))
    [{'a': 1, 'order': 0}, {'a': 2, 'order': 1}]
    """

    def __init__(self, source_datapipe: Pipe, index_name: str = "index") -> None:
        super().__init__(source_datapipe)
        self.index_name = index_name

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        for index, item in enumerate(self.parent):
            if isinstance(item, Sample):
                yield item.with_data(**{self.index_name: index})
            elif isinstance(item, Mapping):
                yield {**item, self.index_name: index}
            else:
                msg = "We only support adding index to row or batch in dict type, got "
                raise NotImplementedError(msg + type(item).__name__)


class MapToIterConverter(DataPipe, form="to_iter_datapipe", to=MapDataPipe):
    """Yield the items of a map-style pipe in the order of ``indices``, by default 0, 1, ...

    Examples
    --------
    >>> from voxpipe.datapipes.map import SequenceWrapper
    >>> list(SequenceWrapper({"a": 1, "b": 2}).to_iter_datapipe(["b", "a"]))
    [2, 1]
    """

    def __init__(self, datapipe: Any, indices: Sequence[Any] | None = None) -> None:
        super().__init__(datapipe)
        if not isinstance(datapipe, MapDataPipe):
            msg = f"MapToIterConverter can only apply on MapDataPipe, but found {type(datapipe)}"
            raise TypeError(msg)
        self.indices = indices

    def __iter__(self) -> Iterator[Any]:
        for index in range(len(self)) if self.indices is None else self.indices:
            yield self.parent[index]

    def __len__(self) -> int:
        return length_of(self, self.parent) if self.indices is None else len(self.indices)


class Flattener(_ColumnPipe, form="flatten"):
    """Unpack tuples and lists in tuples and lists, or mappings in mappings, by one level.

    ``indices`` is the index or key to unpack, or a list of them; all by default. An existing key
    keeps its value, with one warning; missing columns cause one warning, too.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([(0, (1, 2)), (3, (4, 5))]).flatten())
    [(0, 1, 2), (3, 4, 5)]
    >>> list(IterableWrapper([((0, 1), (2, 3))]).flatten(0))
    [(0, 1, (2, 3))]
    """

    def __init__(self, datapipe: Pipe, indices: Hashable | list[Hashable] | None = None) -> None:
        super().__init__(datapipe)
        self.indices = indices if indices is None or isinstance(indices, list) else [indices]

    def apply(self, item: Any) -> Any:
        keys = self.keys_of(item, self.indices or ())
        if isinstance(item, Mapping):
            return _rebuild(item, self._unpack(item))
        flat: list[Any] = []
        for index, value in enumerate(item):
            unpacks = isinstance(value, (list, tuple)) and (not self.indices or index in keys)
            flat += value if unpacks else [value]
        return tuple(flat) if isinstance(item, tuple) else flat

    def _unpack(self, item: Mapping[Any, Any]) -> dict[Any, Any]:
        flat: dict[Any, Any] = {}
        for key, value in item.items():
            is_nested = isinstance(value, Mapping) and (not self.indices or key in self.indices)
            for inner, thing in value.items() if is_nested else [(key, value)]:
                if inner in flat or (is_nested and inner in item):
                    text = "Flattener tried to insert the same key twice into the dict item, "
                    text += "the second key,value pair has been dropped."
                    warn(text, UserWarning, self.origin)
                else:
                    flat[inner] = thing
        return flat


def _rebuild(item: Any, columns: dict[Any, Any]) -> Any:
    """Return an item of the kind of ``item`` that holds other things; the item itself stays."""
    if isinstance(item, Sample):
        return item.replace(data=columns)
    if isinstance(item, Mapping):
        return columns
    return tuple(columns.values()) if isinstance(item, tuple) else list(columns.values())
