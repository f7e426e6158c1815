"""Shuffle within each batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from torch.utils.data import DataChunk

from ....graph import Pipe, Traits
from ...datapipe import length_of
from ...forms import offered
from ...running import Shuffling, in_new_order


@offered("in_batch_shuffle")
class InBatchShuffler(Shuffling):
    """Yield each batch with its items in a drawn order.

    Parameters
    ----------
    datapipe
        The parent; an item is a list.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> [sorted(batch) for batch in IterableWrapper(range(5)).batch(3).in_batch_shuffle()]
    [[0, 1, 2], [3, 4]]
    """

    traits: ClassVar[Traits] = Traits()

    def __init__(self, datapipe: Pipe) -> None:
        super().__init__()
        self.parent = datapipe

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches."""
        for batch in self.parent:
            yield DataChunk(in_new_order(self._rng, batch)) if self._enabled else batch

    def __len__(self) -> int:
        """Return the parent's length."""
        return length_of(self, self.parent)
