"""Make several items of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

from ....graph import Pipe, Traits
from ...datapipe import DataPipe
from ...forms import offered
from .columns import Columns


def itself(item: Any, *others: Any) -> Any:
    """Return what it is given."""
    return (item, *others) if others else item


@offered("flatmap")
class FlatMapper(DataPipe):
    """Apply a function to each item, and yield the items that it returns.

    Parameters
    ----------
    datapipe
        The parent.
    fn
        Returns any number of items; without it the items of the parent are unpacked.
    input_col
        Index or key of what ``fn`` gets, or a list of them for several arguments; None for the
        item.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([[1, 2], [3]]).flatmap())
    [1, 2, 3]
    """

    traits: ClassVar[Traits] = Traits(opaque=True)

    def __init__(
        self,
        datapipe: Pipe,
        fn: Callable[..., Iterable[Any]] | None = None,
        input_col: Any = None,
    ) -> None:
        super().__init__()
        self.parent = datapipe
        self.fn = itself if fn is None else fn
        self.columns = Columns.checked(self.fn, input_col, None)

    def __iter__(self) -> Iterator[Any]:
        """Yield what the function returns."""
        for item in self.parent:
            yield from self.fn(*self.columns.arguments(item))

    def __len__(self) -> int:
        """Raise TypeError: the function decides how many items there are."""
        msg = "FlatMapper's length relies on the output of its function."
        raise TypeError(msg)
