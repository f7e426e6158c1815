"""Apply a function to several items at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

from ....core.whole import whole
from ....graph import Pipe, Traits
from ...datapipe import DataPipe
from ...forms import offered
from .columns import function


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

    traits: ClassVar[Traits] = Traits(opaque=True)

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
        self.batch_size = whole("batch_size", batch_size, least=1)
        self.input_col = input_col

    def __iter__(self) -> Iterator[Any]:
        """Yield what the function returns."""
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
        """Raise TypeError: the function decides how many items there are."""
        msg = "BatchMapper's length relies on the output of its function."
        raise TypeError(msg)
