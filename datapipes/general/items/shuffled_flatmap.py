"""Make several items of each, in a drawn order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, ClassVar

from ....core.whole import whole
from ....graph import Pipe, Traits
from ...datapipe import length_of
from ...forms import offered
from ...running import Shuffling
from .columns import Columns
from .flatmap import itself

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

    traits: ClassVar[Traits] = Traits(opaque=True)

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
        self.buffer_size = whole("buffer_size", buffer_size, least=1)

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
