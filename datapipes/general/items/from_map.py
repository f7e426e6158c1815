"""Go through a map-style pipe."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from torch.utils.data import MapDataPipe

from ....graph import Traits
from ...datapipe import DataPipe, length_of
from ...forms import offered


@offered("to_iter_datapipe", to=MapDataPipe)
class MapToIterConverter(DataPipe):
    """Yield the items of a map-style pipe.

    Parameters
    ----------
    datapipe
        The map-style pipe.
    indices
        Which items, in which order; 0, 1, ... by default.

    Raises
    ------
    TypeError
        If it is no map-style pipe.

    Examples
    --------
    >>> from voxpipe.datapipes.map import SequenceWrapper
    >>> list(SequenceWrapper({"a": 1, "b": 2}).to_iter_datapipe(["b", "a"]))
    [2, 1]
    """

    traits: ClassVar[Traits] = Traits()

    def __init__(self, datapipe: Any, indices: Sequence[Any] | None = None) -> None:
        super().__init__()
        if not isinstance(datapipe, MapDataPipe):
            msg = f"MapToIterConverter can only apply on MapDataPipe, but found {type(datapipe)}"
            raise TypeError(msg)
        self.parent = datapipe
        self.indices = indices

    def __iter__(self) -> Iterator[Any]:
        """Yield the items."""
        for index in range(len(self)) if self.indices is None else self.indices:
            yield self.parent[index]

    def __len__(self) -> int:
        """Return the number of items."""
        return length_of(self, self.parent) if self.indices is None else len(self.indices)
