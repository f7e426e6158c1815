"""A pipe per column of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....core.whole import whole
from ....graph import Pipe
from ...datapipe import DataPipe, length_of
from ...forms import offered
from .branches import Branch, Trunk


def columns_kept(sequence_length: int, columns_to_skip: Sequence[int] | None) -> list[int]:
    """Return the columns that are not skipped.

    Raises
    ------
    RuntimeError
        If none is left.
    """
    skipped = {*(columns_to_skip or ())}
    length = whole("sequence_length", sequence_length, least=1)
    kept = [column for column in range(length) if column not in skipped]
    if not kept:
        msg = f"unzip() skips all {length} columns; leave one out of columns_to_skip="
        raise RuntimeError(msg)
    return kept


@offered("unzip")
class UnZipper(DataPipe):
    """Return a list of pipes, one per column of the parent's sequences.

    Parameters
    ----------
    source_datapipe
        The parent; every item is a sequence of ``sequence_length`` things.
    sequence_length
        Number of columns.
    buffer_size
        How far one pipe may be read beyond another, in items; -1 for any distance.
    columns_to_skip
        Columns for which there is to be no pipe.
    buffer_bytes
        Bytes that what waits may take, with the data of arrays and tensors; one item of each pipe
        may take more. None for 1 GiB, or for any number if ``buffer_size`` is -1.

    Raises
    ------
    RuntimeError
        If all columns are skipped.
    BufferError
        While iterating: one pipe is read too far beyond another.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> numbers, letters = IterableWrapper([(0, "a"), (1, "b")]).unzip(2)
    >>> list(numbers), list(letters)
    ([0, 1], ['a', 'b'])
    """

    def __new__(  # type: ignore[misc]
        cls,
        source_datapipe: Pipe,
        sequence_length: int,
        buffer_size: int = 1000,
        columns_to_skip: Sequence[int] | None = None,
        *,
        buffer_bytes: int | None = None,
    ) -> list[Branch]:
        """Return the pipes."""
        columns = columns_kept(sequence_length, columns_to_skip)
        trunk = _Columns(source_datapipe, columns, buffer_size, buffer_bytes)
        return [Branch(trunk, number) for number in range(len(columns))]


class _Columns(Trunk):
    """Deals each item out column by column."""

    chained = "unzip"

    def __init__(
        self, parent: Pipe, columns: list[int], buffer_size: int, buffer_bytes: int | None
    ) -> None:
        super().__init__(parent, len(columns), buffer_size, buffer_bytes)
        self.columns = columns

    def deal(self, item: Any, number: int) -> list[tuple[int, Any]]:
        """Give every branch its column."""
        return [(branch, item[column]) for branch, column in enumerate(self.columns)]

    def room_taken(self, waiting: list[int]) -> int:
        """Return how far the slowest branch lies behind."""
        return max(waiting)

    def branch_length(self, branch: int) -> int:
        """Return the parent's length."""
        return length_of(self, self.parent)
