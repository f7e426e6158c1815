"""Keep columns of items."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from ....core.origin import warn
from ....graph import Pipe
from ...datapipe import PerItem
from ...forms import offered
from .drop import MISSING, UNFILTERED
from .fields import from_the_beginning, lacks, positions, rebuilt


@offered("slice")
class Slicer(PerItem):
    """Keep columns of tuples and lists, or keys of mappings.

    Parameters
    ----------
    datapipe
        The parent.
    index
        Where the slice begins, or a list of the indices or keys to keep. They come in the order
        of the item.
    stop, step
        Of the slice. For a list of indices, and for mappings, they mean nothing.

    Notes
    -----
    What an item lacks, and items that have no columns, bring one warning.

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
        """Return the item with these columns only."""
        fields = positions(item)
        if fields is None:
            warn(UNFILTERED, UserWarning, self.origin)
            return item
        if isinstance(self.index, list):
            return self._listed(item, fields, self.index)
        if not isinstance(item, Mapping):
            kept: Any = item[self.index : self.stop : self.step]
            return kept
        if self.index in fields:
            return rebuilt(item, {self.index: fields[self.index]})
        text = "Dictionaries are not sliced by steps, only direct index. "
        text += "Please be aware that no filter was done or new item created."
        warn(text, UserWarning, self.origin)
        return item

    def _listed(self, item: Any, fields: dict[Any, Any], wanted: list[Any]) -> Any:
        if any(lacks(item, index) for index in wanted):
            warn(MISSING, UserWarning, self.origin)
        kept = wanted if isinstance(item, Mapping) else from_the_beginning(item, wanted)
        return rebuilt(item, {key: v for key, v in fields.items() if key in kept})
