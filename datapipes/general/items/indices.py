"""Number the items of a pipe."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from ....core import Sample
from ....graph import Pipe, Traits
from ...datapipe import DataPipe, length_of
from ...forms import offered


@offered("enumerate")
class Enumerator(DataPipe):
    """Yield ``(index, item)``.

    Parameters
    ----------
    source_datapipe
        The parent.
    starting_index
        Index of the first item.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper("ab").enumerate())
    [(0, 'a'), (1, 'b')]
    """

    traits: ClassVar[Traits] = Traits()

    def __init__(self, source_datapipe: Pipe, starting_index: int = 0) -> None:
        super().__init__()
        self.parent = source_datapipe
        self.starting_index = starting_index

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """Yield the pairs."""
        yield from enumerate(self.parent, self.starting_index)

    def __len__(self) -> int:
        """Return the parent's length."""
        return length_of(self, self.parent)


@offered("add_index")
class IndexAdder(DataPipe):
    """Write the number of each item into it.

    Parameters
    ----------
    source_datapipe
        The parent, whose items are mappings. They stay as they are: what is yielded is a copy
        with one key more; of a sample another sample.
    index_name
        The key.

    Raises
    ------
    NotImplementedError
        While iterating: an item is no mapping.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([{"a": 1}, {"a": 2}]).add_index("order"))
    [{'a': 1, 'order': 0}, {'a': 2, 'order': 1}]
    """

    traits: ClassVar[Traits] = Traits()

    def __init__(self, source_datapipe: Pipe, index_name: str = "index") -> None:
        super().__init__()
        self.parent = source_datapipe
        self.index_name = index_name

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        """Yield the items with their index."""
        for index, item in enumerate(self.parent):
            if isinstance(item, Sample):
                yield item.with_data(**{self.index_name: index})
            elif isinstance(item, Mapping):
                yield {**item, self.index_name: index}
            else:
                msg = "We only support adding index to row or batch in dict type, got "
                raise NotImplementedError(msg + type(item).__name__)

    def __len__(self) -> int:
        """Return the parent's length."""
        return length_of(self, self.parent)
