"""Begin only, or say how long a pipe is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any, ClassVar

from ....core.origin import warn
from ....core.whole import whole
from ....graph import Pipe, Traits
from ...datapipe import DataPipe, length_of
from ...forms import offered


@offered("header")
class Header(DataPipe):
    """Yield the first items of the parent.

    Parameters
    ----------
    source_datapipe
        The parent. Not asked for more than is yielded.
    limit
        How many; None for all.

    Raises
    ------
    ValueError
        If the limit is negative.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(range(10)).header(3))
    [0, 1, 2]
    """

    traits: ClassVar[Traits] = Traits()

    def __init__(self, source_datapipe: Pipe, limit: int | None = 10) -> None:
        super().__init__()
        self.parent = source_datapipe
        self.limit = None if limit is None else whole("limit", limit, least=0)

    def __iter__(self) -> Iterator[Any]:
        """Yield the first items."""
        yield from islice(self.parent, self.limit)

    def __len__(self) -> int:
        """Return the limit, or the parent's length where that is shorter.

        If the parent has no length it is the limit, with a warning that it may be less.
        """
        # The words that tests of users of torchdata look for.
        named = "The length of this HeaderIterDataPipe"
        try:
            found = length_of(self, self.parent)
        except TypeError as error:
            if self.limit is None:
                raise TypeError(f"{named} cannot be determined. {error}") from None
            text = f"{named} is inferred to be equal to its limit. "
            text += "It is less if the parent, whose length is not known, ends before."
            warn(text, UserWarning)
            return self.limit
        return found if self.limit is None else min(found, self.limit)


@offered("set_length")
class LengthSetter(DataPipe):
    """Say how long the parent is, where that cannot be known: after ``filter``, for instance.

    Parameters
    ----------
    source_datapipe
        The parent; all its items are yielded, however many they are.
    length
        What ``len()`` returns.

    Raises
    ------
    ValueError
        If the length is negative.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> len(IterableWrapper(range(10)).filter(bool).set_length(9))
    9
    """

    traits: ClassVar[Traits] = Traits()

    def __init__(self, source_datapipe: Pipe, length: int) -> None:
        super().__init__()
        self.parent = source_datapipe
        self.length = whole("length", length, least=0)

    def __iter__(self) -> Iterator[Any]:
        """Yield the parent's items."""
        yield from self.parent

    def __len__(self) -> int:
        """Return the length that was said."""
        return self.length
