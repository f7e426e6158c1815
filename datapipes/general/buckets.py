"""Pipes that group items: by length, by tokens, shuffled within a batch."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, ClassVar

from torch.utils.data import DataChunk

from ...core.validate import validate_int
from ...graph import Pipe, Traits
from ..datapipe import DataPipe, length_of
from ..epoch import Shuffling, shuffled_copy
from ..forms import offered
from .functions import function


@offered("bucketbatch")
class BucketBatcher(DataPipe):
    """Shuffle within pools, sort within buckets, and batch; the result is a chain of small pipes.

    Parameters
    ----------
    datapipe
        The parent.
    batch_size
        Items in a batch.
    drop_last
        Whether a last, smaller batch is left out.
    batch_num
        Batches in a bucket, within which ``sort_key`` sorts.
    bucket_num
        Buckets in a pool, within which is shuffled.
    sort_key
        Gets a list of items and returns it sorted. Without it nothing is sorted.
    use_in_batch_shuffle
        Whether whole pools are shuffled, or a buffer of the size of a pool.

    Raises
    ------
    ValueError
        If a number is below 1.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> batches = IterableWrapper([3, 1, 2, 5, 4]).bucketbatch(2, sort_key=sorted)
    >>> list(batches)
    [[1, 2], [3, 4], [5]]
    """

    def __new__(
        cls,
        datapipe: Any,
        batch_size: int,
        drop_last: bool = False,
        batch_num: int = 100,
        bucket_num: int = 1,
        sort_key: Callable[[list[Any]], list[Any]] | None = None,
        use_in_batch_shuffle: bool = True,
    ) -> Any:
        """Return the last pipe of the chain."""
        validate_int("batch_size", batch_size, least=1)
        bucket = batch_size * validate_int("batch_num", batch_num, least=1)
        pool = bucket * validate_int("bucket_num", bucket_num, least=1)
        if bucket_num > 1 or sort_key is None:
            datapipe = _shuffled(datapipe, pool, whole_pools=use_in_batch_shuffle)
        if sort_key is not None:
            datapipe = datapipe.batch(bucket).map(sort_key).unbatch()
        datapipe = datapipe.batch(batch_size, drop_last=drop_last)
        if sort_key is None:
            return datapipe
        # Batches of one bucket are sorted: those of a pool change places. With one bucket in a
        # pool they stay in order, as users of torchdata expect.
        if use_in_batch_shuffle:
            return _shuffled(datapipe, bucket_num, whole_pools=True)
        return datapipe.shuffle(buffer_size=bucket)


def _shuffled(datapipe: Any, size: int, *, whole_pools: bool) -> Any:
    if whole_pools:
        return datapipe.batch(size).in_batch_shuffle().unbatch()
    return datapipe.shuffle(buffer_size=size)


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

    traits: ClassVar[Traits] = Traits(runs_user_code=True)

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
        self.buffer_size = validate_int("buffer_size", buffer_size, least=1)
        self.include_padding = include_padding

    def __iter__(self) -> Iterator[DataChunk[Any]]:
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
        for batch in self.parent:
            yield DataChunk(shuffled_copy(self._rng, batch)) if self._enabled else batch

    def __len__(self) -> int:
        return length_of(self, self.parent)
