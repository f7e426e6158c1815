"""Go through a pipe again and again, or through each of its items."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count as count_from
from typing import Any, ClassVar

from ....core import Sample, Stream
from ....core.whole import whole
from ....graph import Pipe, Traits
from ...datapipe import DataPipe, length_of
from ...epoch import seed_again
from ...forms import offered


@offered("cycle")
class Cycler(DataPipe):
    """Yield all items of the parent ``count`` times, or for ever.

    Parameters
    ----------
    source_datapipe
        The parent.
    count
        How often; None for ever, 0 for nothing at all.

    Notes
    -----
    A loader's seed covers every turn: random pipes above are seeded anew for each, so that
    turns differ and an epoch can be repeated and resumed. A parent without any item ends.

    Raises
    ------
    ValueError
        If the count is negative.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(range(3)).cycle(2))
    [0, 1, 2, 0, 1, 2]
    """

    traits: ClassVar[Traits] = Traits()

    def __init__(self, source_datapipe: Pipe, count: int | None = None) -> None:
        super().__init__()
        self.parent = source_datapipe
        self.count = None if count is None else whole("count", count, least=0)
        self._seed: int | None = None

    def set_seed(self, seed: int) -> Cycler:
        """Set the seed from which the turns of the next pass are seeded."""
        self._seed = seed
        return self

    def __iter__(self) -> Iterator[Any]:
        """Yield the items of every turn."""
        seed, self._seed = self._seed, None
        for turn in count_from() if self.count is None else range(self.count):
            if turn and seed is not None:
                seed_again(self.parent, Stream(seed, 0, (turn,), "cycle").integer())
            empty = True
            for item in self.parent:
                empty = False
                yield item
            if empty:
                return

    def __len__(self) -> int:
        """Return the items of all turns; TypeError if it cycles for ever."""
        if self.count is None:
            msg = "Cycler has no len(): this instance cycles forever, and therefore doesn't have "
            msg += "valid length"
            raise TypeError(msg)
        return self.count * length_of(self, self.parent)


@offered("repeat")
class Repeater(DataPipe):
    """Yield each item of the parent ``times`` times, one after the other.

    Parameters
    ----------
    source_datapipe
        The parent.
    times
        How often, at least twice.

    Notes
    -----
    The very same object is yielded. Only a sample gets an identity of its own from the second
    time on, so that random pipes further down draw something else for it.

    Raises
    ------
    ValueError
        If it is to be yielded less than twice.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(range(3)).repeat(2))
    [0, 0, 1, 1, 2, 2]
    """

    traits: ClassVar[Traits] = Traits()

    def __init__(self, source_datapipe: Pipe, times: int) -> None:
        super().__init__()
        self.parent = source_datapipe
        self.times = whole("times", times, least=2)

    def __iter__(self) -> Iterator[Any]:
        """Yield every item as often as was asked for."""
        for item in self.parent:
            for time in range(self.times):
                yield item.child(time) if time and isinstance(item, Sample) else item

    def __len__(self) -> int:
        """Return the parent's length times ``times``."""
        return self.times * length_of(self, self.parent)
