"""Apply a function to parts of an item, named by index or key, as torch's ``map`` does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.data.datapipes.utils.common import validate_input_col

from ...core import Sample
from ...graph import Pipe
from ..datapipe import PerItem
from ..forms import offered

Column = Hashable | list[Hashable] | tuple[Hashable, ...] | None
"""An index or key, several, or None for the item itself."""

APPEND = -1
"""As ``output_col``: put the result at the end."""


def function(name: str, value: Any) -> Any:
    """Return ``value`` if it can be called.

    Raises
    ------
    TypeError
        Naming the argument.

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
        """Return the columns, if the function takes as many arguments.

        Raises
        ------
        TypeError
            If it is no function.
        ValueError
            If there is an output but no input, if there are several outputs, or if the function
            wants another number of arguments.
        """
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
