"""Batches that hold about as much, whatever the sizes of their items."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, ClassVar

from torch.utils.data import DataChunk

from ....core.whole import whole
from ....graph import Pipe, Traits
from ...datapipe import DataPipe
from ...forms import offered
from .columns import function


@offered("max_token_bucketize")
class MaxTokenBucketizer(DataPipe):
    """Gather items of similar length into batches whose lengths add up to a limit at most.

    Parameters
    ----------
    datapipe
        The parent.
    max_token_count
        What the lengths of a batch may add up to.
    len_fn
        Returns the length of an item: voxels, tokens, samples.
    min_len, max_len
        Items that are shorter or longer are left out; ``max_len`` is ``max_token_count`` by
        default.
    buffer_size
        Items among which the shortest is taken next. Shuffle before and after, and keep this
        small, if batches of one length are not to follow each other.
    include_padding
        Whether every item counts as long as the longest of its batch.

    Raises
    ------
    ValueError
        If the limits contradict each other.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> words = IterableWrapper(["1", "11", "1", "1111", "111", "1", "11", "11", "111"])
    >>> list(words.max_token_bucketize(max_token_count=5))
    [['1', '1', '1', '11'], ['11', '11'], ['111'], ['111'], ['1111']]
    """

    traits: ClassVar[Traits] = Traits(opaque=True)

    def __init__(
        self,
        datapipe: Pipe,
        max_token_count: int,
        len_fn: Callable[[Any], int] = len,
        min_len: int = 0,
        max_len: int | None = None,
        buffer_size: int = 1000,
        include_padding: bool = False,
    ) -> None:
        super().__init__()
        longest = max_token_count if max_len is None else max_len
        if not 0 <= min_len <= longest:
            msg = "``min_len`` should be larger than 0 and equal to or smaller than ``max_len``, "
            raise ValueError(msg + f"got {min_len} and {longest}")
        if longest > max_token_count:
            msg = "``max_token_count`` must be equal to or greater than ``max_len``, "
            raise ValueError(msg + f"got {max_token_count} and {longest}")
        self.parent = datapipe
        self.max_token_count = max_token_count
        self.len_fn = function("len_fn", len_fn)
        self.min_len, self.max_len = min_len, longest
        self.buffer_size = whole("buffer_size", buffer_size, least=1)
        self.include_padding = include_padding

    def __iter__(self) -> Iterator[DataChunk[Any]]:
        """Yield the batches."""
        batch: list[Any] = []
        total = 0
        for length, item in self._shortest_first():
            # They come in growing order only within a buffer: the longest may be an older one.
            longest = max(length, *(size for size, _ in batch)) if batch else length
            enlarged = (len(batch) + 1) * longest if self.include_padding else total + length
            if batch and enlarged > self.max_token_count:
                yield DataChunk([held for _, held in batch])
                batch, enlarged = [], length
            batch.append((length, item))
            total = enlarged
        if batch:
            yield DataChunk([held for _, held in batch])

    def _shortest_first(self) -> Iterator[tuple[int, Any]]:
        """Yield length and item, each time the shortest of the buffer, the older of two equals."""
        heap: list[tuple[int, int, Any]] = []
        number = count()
        for item in self.parent:
            length = self.len_fn(item)
            if not self.min_len <= length <= self.max_len:
                continue
            heapq.heappush(heap, (length, next(number), item))
            if len(heap) == self.buffer_size:
                yield _without_number(heapq.heappop(heap))
        while heap:
            yield _without_number(heapq.heappop(heap))


def _without_number(entry: tuple[int, int, Any]) -> tuple[int, Any]:
    return entry[0], entry[2]
