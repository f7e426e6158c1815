"""Unpack what is nested in items, by one level."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from ....core.origin import warn
from ....graph import Pipe
from ...datapipe import PerItem
from ...forms import offered
from .drop import MISSING
from .fields import lacks, rebuilt

_TWICE = (
    "Flattener tried to insert the same key twice into the dict item, "
    "the second key,value pair has been dropped."
)


@offered("flatten")
class Flattener(PerItem):
    """Unpack tuples and lists in tuples and lists, or mappings in mappings, by one level.

    Parameters
    ----------
    datapipe
        The parent.
    indices
        Index or key of what is unpacked, or a list of them; all by default.

    Notes
    -----
    A key that there is already keeps its value, with one warning; so does what an item lacks.

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
        """Return the item with less nesting."""
        if self.indices and any(lacks(item, index) for index in self.indices):
            warn(MISSING, UserWarning, self.origin)
        if isinstance(item, Mapping):
            return rebuilt(item, self._unpacked(item))
        flat: list[Any] = []
        for index, value in enumerate(item):
            if isinstance(value, (list, tuple)) and self._is_meant(index, len(item)):
                flat.extend(value)
            else:
                flat.append(value)
        return tuple(flat) if isinstance(item, tuple) else flat

    def _unpacked(self, item: Mapping[Any, Any]) -> dict[Any, Any]:
        flat: dict[Any, Any] = {}
        for key, value in item.items():
            nested = isinstance(value, Mapping) and self._is_meant(key, 0)
            for inner, thing in value.items() if nested else [(key, value)]:
                if inner in flat or (nested and inner in item):
                    warn(_TWICE, UserWarning, self.origin)
                else:
                    flat[inner] = thing
        return flat

    def _is_meant(self, index: Any, length: int) -> bool:
        if not self.indices:
            return True
        return index in self.indices or (length > 0 and index - length in self.indices)
