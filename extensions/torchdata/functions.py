"""Pipes that call a function on items, on columns of them, or on batches, or group items."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from typing import Any, ClassVar

from torch.utils.data import DataChunk
from torch.utils.data.datapipes.utils.common import validate_input_col

from ...core import Sample
from ...core.validate import validate_int
from ...datapipes.datapipe import DataPipe, PerItem, SameLength, length_of
from ...datapipes.epoch import Shuffling
from ...graph import Pipe, Traits

APPEND = -1  # as ``output_col``: put the result at the end


def function(name: str, value: Any) -> Any:
    """Return ``value`` if it can be called."""
    if not callable(value):
        msg = f"A callable function is expected as {name}, but {type(value).__name__} is provided"
        raise TypeError(msg)
    return value


@dataclass(frozen=True)
class Columns:
    """Which parts of an item a function gets, and where its result goes."""

    source: Any = None  # indices or keys; None for the whole item
    target: Any = None  # index or key; None for the first of ``source``, whose others are removed

    @classmethod
    def check(cls, fn: Callable[..., Any], input_col: Any, output_col: Any) -> Columns:
        """Return the columns, if the function takes as many arguments."""
        function("fn", fn)
        if input_col is None and output_col is not None:
            raise ValueError("`output_col` must be None when `input_col` is None.")
        if isinstance(output_col, (list, tuple)):
            if len(output_col) != 1:
                raise ValueError("`output_col` must be a single-element list or tuple")
            output_col = output_col[0]
        validate_input_col(fn, input_col)
        return cls(input_col, output_col)

    def arguments(self, item: Any) -> tuple[Any, ...]:
        if self.source is None:
            return (item,)
        if isinstance(self.source, (list, tuple)):
            return tuple(item[column] for column in self.source)
        return (item[self.source],)

    def place(self, item: Any, result: Any) -> Any:
        """Return the item with the result in its place; the item given stays as it is."""
        if self.source is None:
            return result
        if isinstance(item, Mapping):
            fields = dict(item)
            self._put(fields, result)
            return item.replace(data=fields) if isinstance(item, Sample) else fields
        values = list(item)
        self._put(values, result)
        return tuple(values) if isinstance(item, tuple) else values

    def _put(self, fields: Any, result: Any) -> None:
        if self.target is not None:
            if self.target == APPEND and isinstance(fields, list):
                fields.append(result)
            else:
                fields[self.target] = result
        elif isinstance(self.source, (list, tuple)):
            fields[self.source[0]] = result
            # From the last on, so that earlier indices stay valid.
            others = self.source[1:]
            for column in sorted(others, reverse=True) if isinstance(fields, list) else others:
                del fields[column]
        else:
            fields[self.source] = result


class Rows2Columnar(PerItem, form="rows2columnar"):
    """Make a mapping from column to values of each batch, a list of rows.

    ``column_names`` chooses the columns of rows that are mappings, all by default. It names those
    of rows that are lists. A missing column is a ``KeyError``, more values than names a
    ``ValueError``.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> [dict(batch) for batch in IterableWrapper([[{"a": 1}, {"a": 2}]]).rows2columnar()]
    [{'a': [1, 2]}]
    >>> [dict(batch) for batch in IterableWrapper([[[1, 2], [3, 4]]]).rows2columnar(["a", "b"])]
    [{'a': [1, 3], 'b': [2, 4]}]
    """

    def __init__(self, source_datapipe: Pipe, column_names: Collection[str] | None = None) -> None:
        super().__init__(source_datapipe)
        self.column_names = list(column_names or ())

    def apply(self, item: Any) -> defaultdict[str, list[Any]]:
        columns: defaultdict[str, list[Any]] = defaultdict(list)
        for row in item:
            if isinstance(row, Mapping):
                for name in self.column_names or row:
                    columns[name].append(row[name])
                continue
            if len(row) > len(self.column_names):
                msg = f"a row has {len(row)} values and there are {len(self.column_names)} names"
                raise ValueError(msg)
            for name, value in zip(self.column_names, row, strict=False):
                columns[name].append(value)
        return columns


def identity(item: Any, *others: Any) -> Any:
    """Return the argument, or a tuple of several."""
    return (item, *others) if others else item


class FlatMapper(DataPipe, form="flatmap"):
    """Apply a function to each item, and yield the items that it returns.

    Without ``fn`` the items of the parent are unpacked. ``input_col`` is the index or key of the
    argument of ``fn``, or a list of them for several; None for the item.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([[1, 2], [3]]).flatmap())
    [1, 2, 3]
    """

    traits: ClassVar[Traits] = Traits(runs_user_code=True)

    def __init__(
        self, datapipe: Pipe, fn: Callable[..., Iterable[Any]] | None = None, input_col: Any = None
    ) -> None:
        super().__init__(datapipe)
        self.fn = identity if fn is None else fn
        self.columns = Columns.check(self.fn, input_col, None)

    def __iter__(self) -> Iterator[Any]:
        for item in self.parent:
            yield from self.fn(*self.columns.arguments(item))

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__}'s length relies on the output of its function.")


_END = object()


class ShuffledFlatMapper(FlatMapper, Shuffling, form="shuffled_flatmap"):
    """Apply a function to each item, and yield the results of several items mixed.

    The next item is drawn from ``buffer_size`` results; within one result the order stays. Each is
    read one item at a time, so the items of a generator are not held. Without shuffling it is
    :class:`FlatMapper`, whose arguments it has.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> sorted(IterableWrapper([[1, 2], [3], [4]]).shuffled_flatmap(buffer_size=2))
    [1, 2, 3, 4]
    """

    def __init__(
        self,
        datapipe: Pipe,
        fn: Callable[..., Iterable[Any]] | None = None,
        input_col: Any = None,
        buffer_size: int = 100,
    ) -> None:
        super().__init__(datapipe, fn, input_col)
        self.buffer_size = validate_int("buffer_size", buffer_size, least=1)

    def __iter__(self) -> Iterator[Any]:
        under_way: list[Iterator[Any]] = []
        for item in self.parent:
            results = self.fn(*self.columns.arguments(item))
            if not self._enabled:
                yield from results
                continue
            under_way.append(iter(results))
            while len(under_way) == self.buffer_size:
                yield from self._one_of(under_way)
        while under_way:
            yield from self._one_of(under_way)

    def _one_of(self, under_way: list[Iterator[Any]]) -> Iterator[Any]:
        """Yield an item of a result that is drawn, or take that away if it has ended."""
        index = self._rng.randrange(len(under_way))
        item = next(under_way[index], _END)
        if item is _END:
            del under_way[index]
        else:
            yield item

    def __len__(self) -> int:
        """Return the items of all sequences; TypeError where a function makes them.

        Goes through the parent, as only its items know how many they hold.
        """
        if self.fn is not identity or self.columns.source is not None:
            return super().__len__()
        length_of(self, self.parent)
        return sum(map(len, self.parent))


class BatchMapper(SameLength, form="map_batches"):
    """Gather items, apply a function to each group, and yield the items that it returns.

    ``fn`` receives a list of ``batch_size`` items; the last may be shorter. ``input_col`` is the
    index or key of the part of each item for ``fn``, or a list of them; None for the item.

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
        super().__init__(datapipe)
        self.fn = function("fn", fn)
        self.batch_size = validate_int("batch_size", batch_size, least=1)
        self.input_col = input_col

    def __iter__(self) -> Iterator[Any]:
        columns = Columns(self.input_col)
        several = isinstance(self.input_col, (list, tuple))
        items = iter(self.parent)
        while group := [columns.arguments(item) for item in islice(items, self.batch_size)]:
            yield from self.fn([list(each) if several else each[0] for each in group])

    def __len__(self) -> int:
        raise TypeError("BatchMapper's length relies on the output of its function.")


class BucketBatcher(DataPipe, form="bucketbatch"):
    """Shuffle within pools, sort within buckets, and batch; the result is a chain of small pipes.

    - ``batch_num``: batches in a bucket, within which ``sort_key`` sorts a list of items.
    - ``bucket_num``: buckets in a pool, within which is shuffled.
    - ``use_in_batch_shuffle``: whether whole pools are shuffled, or a buffer of the size of a pool.
    - ``drop_last``: whether a last, smaller batch is left out.

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
        validate_int("batch_size", batch_size, least=1)
        bucket = batch_size * validate_int("batch_num", batch_num, least=1)
        pool = bucket * validate_int("bucket_num", bucket_num, least=1)
        if bucket_num > 1 or sort_key is None:
            if use_in_batch_shuffle:
                datapipe = datapipe.batch(pool).in_batch_shuffle().unbatch()
            else:
                datapipe = datapipe.shuffle(buffer_size=pool)
        if sort_key is not None:
            datapipe = datapipe.batch(bucket).map(sort_key).unbatch()
        datapipe = datapipe.batch(batch_size, drop_last=drop_last)
        if sort_key is None:
            return datapipe
        # Batches of one bucket are sorted: those of a pool change places. With one bucket in a
        # pool they stay in order, as users of torchdata expect.
        if use_in_batch_shuffle:
            return datapipe.batch(bucket_num).in_batch_shuffle().unbatch()
        return datapipe.shuffle(buffer_size=bucket)


class MaxTokenBucketizer(DataPipe, form="max_token_bucketize"):
    """Gather items of similar length into batches whose lengths add up to a limit at most.

    - ``max_token_count``: the limit.
    - ``len_fn``: returns the length of an item: voxels, tokens, samples.
    - ``min_len``, ``max_len``: shorter and longer items are left out; by default those above the
      limit.
    - ``buffer_size``: items among which the shortest is taken next. Shuffle before and after, and
      keep this small, if batches of one length are not to follow each other.
    - ``include_padding``: whether every item counts as long as the longest of its batch.

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
        super().__init__(datapipe)
        longest = max_token_count if max_len is None else max_len
        if not 0 <= min_len <= longest:
            msg = "``min_len`` should be larger than 0 and equal to or smaller than ``max_len``, "
            raise ValueError(msg + f"got {min_len} and {longest}")
        if longest > max_token_count:
            msg = "``max_token_count`` must be equal to or greater than ``max_len``, "
            raise ValueError(msg + f"got {max_token_count} and {longest}")
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
            new_total = (len(batch) + 1) * longest if self.include_padding else total + length
            if batch and new_total > self.max_token_count:
                yield DataChunk([member for _, member in batch])
                batch, new_total = [], length
            batch.append((length, item))
            total = new_total
        if batch:
            yield DataChunk([member for _, member in batch])

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
                yield heapq.heappop(heap)[::2]
        while heap:
            yield heapq.heappop(heap)[::2]


class InBatchShuffler(Shuffling, SameLength, form="in_batch_shuffle"):
    """Yield each batch, a list, with its items in a drawn order.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> [sorted(batch) for batch in IterableWrapper(range(5)).batch(3).in_batch_shuffle()]
    [[0, 1, 2], [3, 4]]
    """

    def __init__(self, datapipe: Pipe) -> None:
        super().__init__(datapipe)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.parent:
            # The batch itself stays as it is.
            new = self._rng.sample(list(batch), len(batch)) if self._enabled else []
            yield DataChunk(new) if self._enabled else batch
