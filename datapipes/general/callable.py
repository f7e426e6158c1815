"""Pipes that call a function: on items, and on batches of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

from ...core.validate import validate_int
from ...graph import Pipe, Traits
from ..datapipe import DataPipe, length_of
from ..epoch import Shuffling
from ..forms import offered
from .columns import Columns, function


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

    traits: ClassVar[Traits] = Traits(runs_user_code=True)

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


_ENDED = object()


@offered("shuffled_flatmap")
class ShuffledFlatMapper(Shuffling):
    """Apply a function to each item, and yield what it returns, drawn from several at a time.

    Parameters
    ----------
    datapipe
        The parent.
    fn
        Returns any number of items; without it the items of the parent are unpacked.
    input_col
        Index or key of what ``fn`` gets, or a list of them for several arguments; None for the
        item.
    buffer_size
        How many results are under way at once. Each is read one item at a time, so what a
        generator yields is not held.

    Notes
    -----
    Which of them comes next is drawn; within one result the order stays. Without shuffling it is
    ``flatmap``.

    Raises
    ------
    ValueError
        If no result could be under way.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> sorted(IterableWrapper([[1, 2], [3], [4]]).shuffled_flatmap(buffer_size=2))
    [1, 2, 3, 4]
    """

    traits: ClassVar[Traits] = Traits(runs_user_code=True)

    def __init__(
        self,
        datapipe: Pipe,
        fn: Callable[..., Iterable[Any]] | None = None,
        input_col: Any = None,
        buffer_size: int = 100,
    ) -> None:
        super().__init__()
        self.parent = datapipe
        self.fn = itself if fn is None else fn
        self.columns = Columns.checked(self.fn, input_col, None)
        self.buffer_size = validate_int("buffer_size", buffer_size, least=1)

    def __iter__(self) -> Iterator[Any]:
        """Yield the items."""
        under_way: list[Iterator[Any]] = []
        for item in self.parent:
            made = self.fn(*self.columns.arguments(item))
            if not self._enabled:
                yield from made
                continue
            under_way.append(iter(made))
            while len(under_way) == self.buffer_size:
                yield from self._one_of(under_way)
        while under_way:
            yield from self._one_of(under_way)

    def _one_of(self, under_way: list[Iterator[Any]]) -> Iterator[Any]:
        """Yield an item of a result that is drawn, or take that away if it has ended."""
        chosen = self._rng.randrange(len(under_way))
        item = next(under_way[chosen], _ENDED)
        if item is _ENDED:
            del under_way[chosen]
        else:
            yield item

    def __len__(self) -> int:
        """Return the items of all sequences; TypeError where a function makes them.

        Goes through the parent, as only its items know how many they hold.
        """
        if self.fn is not itself or self.columns.source is not None:
            msg = "ShuffledFlatMapper's length relies on the output of its function."
            raise TypeError(msg)
        length_of(self, self.parent)
        return sum(map(len, self.parent))


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

    traits: ClassVar[Traits] = Traits(runs_user_code=True)

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
        self.batch_size = validate_int("batch_size", batch_size, least=1)
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
