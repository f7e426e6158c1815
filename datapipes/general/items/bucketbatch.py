"""Batches of items that are alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....core.whole import whole
from ...datapipe import DataPipe
from ...forms import offered


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
        whole("batch_size", batch_size, least=1)
        bucket = batch_size * whole("batch_num", batch_num, least=1)
        pool = bucket * whole("bucket_num", bucket_num, least=1)
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
