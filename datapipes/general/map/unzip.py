"""A map-style pipe per column of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch.utils.data import MapDataPipe

from ...datapipe import length_of
from ...forms import offered
from ..items.unzip import columns_kept
from .pipe import MapPipe


@offered("unzip")
class UnZipper(MapPipe):
    """Return a list of map-style pipes, one per column of the parent's sequences.

    Parameters
    ----------
    source_datapipe
        The parent; every item is a sequence of ``sequence_length`` things.
    sequence_length
        Number of columns.
    columns_to_skip
        Columns for which there is to be no pipe.

    Raises
    ------
    ValueError
        If there is to be no column.
    RuntimeError
        If all columns are skipped.

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
        """Return the pipes."""
        kept = columns_kept(sequence_length, columns_to_skip)
        return [Column(source_datapipe, column) for column in kept]


class Column(MapPipe):
    """One column of a map-style pipe.

    Parameters
    ----------
    parent
        The pipe whose items are sequences.
    column
        Which one.
    """

    chained = "unzip"

    def __init__(self, parent: MapDataPipe[Any], column: int) -> None:
        super().__init__()
        self.parent = parent
        self.column = column

    def describe(self) -> str:
        """Return which column it is."""
        return f"unzip(…)[{self.column}]"

    def __getitem__(self, index: Any) -> Any:
        """Return the column of one item."""
        return self.parent[index][self.column]

    def __len__(self) -> int:
        """Return the parent's length."""
        return length_of(self, self.parent)
