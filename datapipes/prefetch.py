"""Make items before they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

from ..batching import Instruction
from ..core.validate import validate_int
from ..graph import Pipe, Traits
from .background_iterator import Ahead, Ended
from .datapipe import length_of
from .forms import offered
from .running import RunningAhead
from .tensors import BUFFER_BYTES


@offered("prefetch")
class Prefetcher(RunningAhead):
    """Make items in a thread before they are asked for; nothing else changes.

    Parameters
    ----------
    source_datapipe
        The parent.
    buffer_size
        Items that are made ahead.
    buffer_bytes
        Bytes that they may take; a single item may take more. One more item can be in the making.

    Notes
    -----
    The thread belongs to the iterator that began it: it ends with the last item, with an error,
    which comes after the items made before it, or when the iterator is dropped. A copy of the
    pipe, or one that was pickled, begins without items. What functions above draw from
    the global generators of ``random``, NumPy or torch is not repeatable, as the thread shares
    these with the rest of the program.

    Behind the voxels of a ``DataLoader2`` whose graph is split, workers make whole batches ahead
    anyway, and this pipe adds nothing. Without workers it makes that many batches ahead, unless
    the chain runs a function of yours or ``Timeout`` watches.

    Raises
    ------
    ValueError
        If a number is below 1.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(range(3)).prefetch(2))
    [0, 1, 2]
    """

    traits: ClassVar[Traits] = Traits(per_item=True, ahead=True)

    def __init__(
        self, source_datapipe: Pipe, buffer_size: int = 10, *, buffer_bytes: int = BUFFER_BYTES
    ) -> None:
        super().__init__()
        self.parent = source_datapipe
        self.buffer_size = validate_int("buffer_size", buffer_size, least=1)
        self.buffer_bytes = validate_int("buffer_bytes", buffer_bytes, least=1, unit="bytes")
        self.fresh()

    def change(self) -> Callable[[Any], Any] | None:
        """Return what the thread does to each item; None for nothing."""
        return None

    def __iter__(self) -> Iterator[Any]:
        """Yield the parent's items."""
        ahead = Ahead(
            self.parent,
            most=self.buffer_size,
            most_bytes=self.buffer_bytes,
            change=self.change(),
            name=self.chained,
        )
        self._ahead = ahead
        try:
            while True:
                try:
                    item = ahead.take()
                except Ended:
                    return
                yield item
                del item  # it is the consumer's alone while the next one is waited for
        finally:
            ahead.stop()
            if self._ahead is ahead:
                self._ahead = None

    def __len__(self) -> int:
        """Return the parent's length."""
        return length_of(self, self.parent)

    def instructions(self) -> tuple[Instruction, ...] | None:
        """Return nothing to do: workers make whole batches ahead."""
        return ()
