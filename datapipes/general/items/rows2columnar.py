"""Turn rows into columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

from ....graph import Pipe
from ...datapipe import PerItem
from ...forms import offered


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
