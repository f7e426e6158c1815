"""Take turns or zip until the longest of several pipes ends."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from torch.utils.data import IterDataPipe

from ....graph import Pipe, Traits
from ...datapipe import DataPipe, length_of
from ...forms import offered

_ENDED = object()


def iterable_pipes(name: str, pipes: tuple[Any, ...]) -> tuple[Pipe, ...]:
    """Return the pipes, if they are iterable pipes.

    Raises
    ------
    TypeError
        Naming the class of the first that is none.
    """
    for pipe in pipes:
        if not isinstance(pipe, IterDataPipe):
            msg = f"{name}() takes IterDataPipes, got {type(pipe).__name__}"
            raise TypeError(msg)
    return pipes


@offered("mux_longest")
class MultiplexerLongest(DataPipe):
    """Yield one item of each pipe in turn, until all are exhausted.

    Parameters
    ----------
    *datapipes
        The parents; one that has ended is passed over.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([1, 2, 3]).mux_longest(IterableWrapper([10])))
    [1, 10, 2, 3]
    """

    traits: ClassVar[Traits] = Traits()

    def __init__(self, *datapipes: Pipe) -> None:
        super().__init__()
        self.parents = iterable_pipes("mux_longest", datapipes)

    def __iter__(self) -> Iterator[Any]:
        """Yield the items in turn."""
        running = [iter(pipe) for pipe in self.parents]
        while running:
            for items in list(running):
                item = next(items, _ENDED)
                if item is _ENDED:
                    running.remove(items)
                else:
                    yield item

    def __len__(self) -> int:
        """Return the number of all items."""
        return sum(length_of(self, pipe) for pipe in self.parents)


@offered("zip_longest")
class ZipperLongest(DataPipe):
    """Yield tuples of one item of each pipe, until all are exhausted.

    Parameters
    ----------
    *datapipes
        The parents.
    fill_value
        What stands for the items of a pipe that has ended.

    Raises
    ------
    TypeError
        If one of them is no iterable pipe.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([1, 2]).zip_longest(IterableWrapper([10]), fill_value=-1))
    [(1, 10), (2, -1)]
    """

    traits: ClassVar[Traits] = Traits()

    def __init__(self, *datapipes: Pipe, fill_value: Any = None) -> None:
        super().__init__()
        self.parents = iterable_pipes("zip_longest", datapipes)
        self.fill_value = fill_value

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        """Yield the tuples."""
        running: list[Iterator[Any] | None] = [iter(pipe) for pipe in self.parents]
        while True:
            together = []
            for number, items in enumerate(running):
                item = _ENDED if items is None else next(items, _ENDED)
                if item is _ENDED:
                    running[number] = None
                together.append(self.fill_value if item is _ENDED else item)
            if not any(running):
                return
            yield tuple(together)

    def __len__(self) -> int:
        """Return the length of the longest."""
        return max((length_of(self, pipe) for pipe in self.parents), default=0)
