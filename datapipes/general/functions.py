"""Pipes that call a function on items, on columns of them, or on batches."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch.utils.data.datapipes.utils.common import validate_input_col

from ...core import Sample
from ...core.validate import validate_int
from ...graph import Pipe, Traits
from ..datapipe import DataPipe, PerItem, length_of
from ..epoch import Shuffling
from ..forms import offered

Column = Hashable | list[Hashable] | tuple[Hashable, ...] | None
"""An index or key, several, or None for the item itself."""

APPEND = -1
"""As ``output_col``: put the result at the end."""


def function(name: str, value: Any) -> Any:
    """Return ``value`` if it can be called.

    Examples
    --------
    >>> function("fn", 3)
    Traceback (most recent call last):
        ...
    TypeError: A callable function is expected as fn, but int is provided
    """
    if not callable(value):
        msg = f"A callable function is expected as {name}, but {type(value).__name__} is provided"
        raise TypeError(msg)
    return value


@dataclass(frozen=True)
class Columns:
    """Which parts of an item a function gets, and where its result goes."""

    source: Any = None
    """Indices or keys; None for the whole item."""
    target: Any = None
    """Index or key; None for the first of ``source``, whose others are removed."""

    @classmethod
    def checked(cls, fn: Callable[..., Any], input_col: Any, output_col: Any) -> Columns:
        """Return the columns, if the function takes as many arguments."""
        function("fn", fn)
        if input_col is None and output_col is not None:
            raise ValueError("`output_col` must be None when `input_col` is None.")
        if isinstance(output_col, (list, tuple)):
            if len(output_col) != 1:
                raise ValueError("`output_col` must be a single-element list or tuple")
            output_col = output_col[0]
        validate_input_col(fn, input_col)
        return cls(input_col, output_col)

    def arguments(self, item: Any) -> tuple[Any, ...]:
        """Return what the function is called with."""
        if self.source is None:
            return (item,)
        if isinstance(self.source, (list, tuple)):
            return tuple(item[column] for column in self.source)
        return (item[self.source],)

    def placed(self, item: Any, result: Any) -> Any:
        """Return the item with the result in its place; the item given stays as it is."""
        if self.source is None:
            return result
        if isinstance(item, Mapping):
            fields = dict(item)
            self._put(fields, result)
            return item.replace(data=fields) if isinstance(item, Sample) else fields
        changed = list(item)
        self._put(changed, result)
        return tuple(changed) if isinstance(item, tuple) else changed

    def _put(self, fields: Any, result: Any) -> None:
        if self.target is not None:
            if self.target == APPEND and isinstance(fields, list):
                fields.append(result)
            else:
                fields[self.target] = result
        elif isinstance(self.source, (list, tuple)):
            fields[self.source[0]] = result
            # From the last on, so that the indices of those before stay what they are.
            others = self.source[1:]
            for column in sorted(others, reverse=True) if isinstance(fields, list) else others:
                del fields[column]
        else:
            fields[self.source] = result


@offered("rows2columnar")
class Rows2Columnar(PerItem):
    """Make a mapping from column to values of each batch of rows.

    Parameters
    ----------
    source_datapipe
        The parent; an item is a list of rows, each a mapping or a list.
    column_names
        The columns to take of mappings, all by default; the names of the columns of lists.

    Raises
    ------
    KeyError
        While iterating: a row lacks a column that was named.
    ValueError
        While iterating: a list has more values than there are names.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> [dict(batch) for batch in IterableWrapper([[{"a": 1}, {"a": 2}]]).rows2columnar()]
    [{'a': [1, 2]}]
    >>> [dict(batch) for batch in IterableWrapper([[[1, 2], [3, 4]]]).rows2columnar(["a", "b"])]
    [{'a': [1, 3], 'b': [2, 4]}]
    """

    def __init__(self, source_datapipe: Pipe, column_names: Collection[str] | None = None) -> None:
        super().__init__(source_datapipe)
        self.column_names = list(column_names or ())

    def apply(self, item: Any) -> defaultdict[str, list[Any]]:
        """Return the columns of one batch."""
        columns: defaultdict[str, list[Any]] = defaultdict(list)
        for row in item:
            if isinstance(row, Mapping):
                for name in self.column_names or row:
                    columns[name].append(row[name])
                continue
            if len(row) > len(self.column_names):
                msg = f"a row has {len(row)} values and there are {len(self.column_names)} names"
                raise ValueError(msg)
            for name, value in zip(self.column_names, row, strict=False):
                columns[name].append(value)
        return columns


def identity(item: Any, *others: Any) -> Any:
    """Return what it is given."""
    return (item, *others) if others else item


@offered("flatmap")
class FlatMapper(DataPipe):
    """Apply a function to each item, and yield the items that it returns.

    Parameters
    ----------
    datapipe
        The parent.
    fn
        Returns any number of items; without it the items of the parent are unpacked.
    input_col
        Index or key of what ``fn`` gets, or a list of them for several arguments; None for the
        item.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([[1, 2], [3]]).flatmap())
    [1, 2, 3]
    """

    traits: ClassVar[Traits] = Traits(runs_user_code=True)

    def __init__(
        self,
        datapipe: Pipe,
        fn: Callable[..., Iterable[Any]] | None = None,
        input_col: Any = None,
    ) -> None:
        super().__init__()
        self.parent = datapipe
        self.fn = identity if fn is None else fn
        self.columns = Columns.checked(self.fn, input_col, None)

    def __iter__(self) -> Iterator[Any]:
        for item in self.parent:
            yield from self.fn(*self.columns.arguments(item))

    def __len__(self) -> int:
        msg = f"{type(self).__name__}'s length relies on the output of its function."
        raise TypeError(msg)


_ENDED = object()


@offered("shuffled_flatmap")
class ShuffledFlatMapper(FlatMapper, Shuffling):
    """Apply a function to each item, and yield what it returns, drawn from several at a time.

    Parameters
    ----------
    datapipe, fn, input_col
        As of :class:`FlatMapper`.
    buffer_size
        How many results are under way at once. Each is read one item at a time, so what a
        generator yields is not held.

    Notes
    -----
    Which of them comes next is drawn; within one result the order stays. Without shuffling it is
    ``flatmap``.

    Raises
    ------
    ValueError
        If no result could be under way.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> sorted(IterableWrapper([[1, 2], [3], [4]]).shuffled_flatmap(buffer_size=2))
    [1, 2, 3, 4]
    """

    def __init__(
        self,
        datapipe: Pipe,
        fn: Callable[..., Iterable[Any]] | None = None,
        input_col: Any = None,
        buffer_size: int = 100,
    ) -> None:
        super().__init__(datapipe, fn, input_col)
        self.buffer_size = validate_int("buffer_size", buffer_size, least=1)

    def __iter__(self) -> Iterator[Any]:
        under_way: list[Iterator[Any]] = []
        for item in self.parent:
            made = self.fn(*self.columns.arguments(item))
            if not self._enabled:
                yield from made
                continue
            under_way.append(iter(made))
            while len(under_way) == self.buffer_size:
                yield from self._one_of(under_way)
        while under_way:
            yield from self._one_of(under_way)

    def _one_of(self, under_way: list[Iterator[Any]]) -> Iterator[Any]:
        """Yield an item of a result that is drawn, or take that away if it has ended."""
        chosen = self._rng.randrange(len(under_way))
        item = next(under_way[chosen], _ENDED)
        if item is _ENDED:
            del under_way[chosen]
        else:
            yield item

    def __len__(self) -> int:
        """Return the items of all sequences; TypeError where a function makes them.

        Goes through the parent, as only its items know how many they hold.
        """
        if self.fn is not identity or self.columns.source is not None:
            return super().__len__()
        length_of(self, self.parent)
        return sum(map(len, self.parent))


@offered("map_batches")
class BatchMapper(DataPipe):
    """Gather items, apply a function to each group, and yield the items that it returns.

    Parameters
    ----------
    datapipe
        The parent.
    fn
        Gets a list of items and returns any number of items.
    batch_size
        Items in a group; the last may be smaller.
    input_col
        Index or key of what ``fn`` gets of each item, or a list of them; None for the item.

    Raises
    ------
    ValueError
        If the group is empty.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(range(5)).map_batches(sorted, batch_size=3))
    [0, 1, 2, 3, 4]
    """

    traits: ClassVar[Traits] = Traits(runs_user_code=True)

    def __init__(
        self,
        datapipe: Pipe,
        fn: Callable[[list[Any]], Iterable[Any]],
        batch_size: int,
        input_col: Any = None,
    ) -> None:
        super().__init__()
        self.parent = datapipe
        self.fn = function("fn", fn)
        self.batch_size = validate_int("batch_size", batch_size, least=1)
        self.input_col = input_col

    def __iter__(self) -> Iterator[Any]:
        group: list[Any] = []
        for item in self.parent:
            group.append(self._part(item))
            if len(group) == self.batch_size:
                yield from self.fn(group)
                group = []
        if group:
            yield from self.fn(group)

    def _part(self, item: Any) -> Any:
        if self.input_col is None:
            return item
        if isinstance(self.input_col, (list, tuple)):
            return [item[column] for column in self.input_col]
        return item[self.input_col]

    def __len__(self) -> int:
        msg = "BatchMapper's length relies on the output of its function."
        raise TypeError(msg)
