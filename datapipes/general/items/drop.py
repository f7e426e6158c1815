"""Leave out columns of items."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from ....core.origin import warn
from ....graph import Pipe
from ...datapipe import PerItem
from ...forms import offered
from .fields import from_the_beginning, lacks, positions, rebuilt

MISSING = (
    "At least one index in the filter is not present in the item being returned, "
    "please be aware that expected columns/keys may be missing."
)
UNFILTERED = (
    "The next item was not an iterable and cannot be filtered, "
    "please be aware that no filter was done or new item created."
)


@offered("drop")
class Dropper(PerItem):
    """Leave out columns of tuples and lists, or keys of mappings.

    Parameters
    ----------
    datapipe
        The parent.
    indices
        One index or key, or a list of them. Negative indices count from the end.

    Notes
    -----
    What an item lacks, and items that have no columns, bring one warning.

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
        """Return the item without the columns."""
        fields = positions(item)
        if fields is None:
            warn(UNFILTERED, UserWarning, self.origin)
            return item
        if any(lacks(item, index) for index in self.indices):
            warn(MISSING, UserWarning, self.origin)
        dropped = self._of(item)
        return rebuilt(item, {key: v for key, v in fields.items() if key not in dropped})

    def _of(self, item: Any) -> set[Any]:
        if not isinstance(item, (tuple, list)):
            return set(self.indices)
        return from_the_beginning(item, self.indices)
