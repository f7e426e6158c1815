"""Pipes that combine others: to the longest end, by key, by weights."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from itertools import cycle, islice, zip_longest
from typing import Any, ClassVar

from torch.utils.data import IterDataPipe, MapDataPipe
from torch.utils.data.datapipes.utils.common import StreamWrapper

from ...core import Stream
from ...core.call_site import CallSite, warn
from ...core.validate import validate_int
from ...datapipes.datapipe import DataPipe, SameLength, length_of
from ...datapipes.epoch import Drawing
from ...datapipes.tensors import buffer_limit, bytes_of
from ...graph import Pipe, Traits
from .functions import function

_END = object()


def iterable_pipes(name: str, pipes: tuple[Any, ...]) -> tuple[Pipe, ...]:
    """Return the pipes, if they are iterable pipes."""
    for pipe in pipes:
        if not isinstance(pipe, IterDataPipe):
            raise TypeError(f"{name}() takes IterDataPipes, got {type(pipe).__name__}")
    return pipes


class MultiplexerLongest(DataPipe, form="mux_longest"):
    """Yield one item of each pipe in turn, until all are exhausted.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([1, 2, 3]).mux_longest(IterableWrapper([10])))
    [1, 10, 2, 3]
    """

    def __init__(self, *datapipes: Pipe) -> None:
        super().__init__()
        self.parents = iterable_pipes("mux_longest", datapipes)

    def __iter__(self) -> Iterator[Any]:
        turns = iter([iter(pipe) for pipe in self.parents])
        for count in range(len(self.parents), 0, -1):
            turns = cycle(islice(turns, count))  # without the one that has just ended
            yield from map(next, turns)

    def __len__(self) -> int:
        return sum(length_of(self, pipe) for pipe in self.parents)


class ZipperLongest(DataPipe, form="zip_longest"):
    """Yield tuples of one item of each pipe, until all are exhausted.

    ``fill_value`` replaces the items of a pipe that has ended.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([1, 2]).zip_longest(IterableWrapper([10]), fill_value=-1))
    [(1, 10), (2, -1)]
    """

    def __init__(self, *datapipes: Pipe, fill_value: Any = None) -> None:
        super().__init__()
        self.parents = iterable_pipes("zip_longest", datapipes)
        self.fill_value = fill_value

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        yield from zip_longest(*self.parents, fillvalue=self.fill_value)

    def __len__(self) -> int:
        return max((length_of(self, pipe) for pipe in self.parents), default=0)


# torchdata's text, which filters of warnings may match.
_DROPPED_HINT = (
    "Buffer reaches the upper limit, so reference key-data pair begins to be removed from buffer "
    "in FIFO order. Please consider increase buffer size."
)


class _KeyZipper(SameLength):
    """Yields items of the parent, each joined with another one that has its key."""

    traits: ClassVar[Traits] = Traits(runs_user_code=True)

    def __init__(
        self,
        parent: Pipe,
        key_fn: Callable[[Any], Hashable],
        merge_fn: Callable[[Any, Any], Any] | None,
        keep_key: bool,
    ) -> None:
        super().__init__(parent)
        self.key_fn = function("key_fn", key_fn)
        self.merge_fn = None if merge_fn is None else function("merge_fn", merge_fn)
        self.keep_key = keep_key

    def _join(self, key: Hashable, item: Any, other: Any) -> Any:
        result = (item, other) if self.merge_fn is None else self.merge_fn(item, other)
        return (key, result) if self.keep_key else result


class IterKeyZipper(_KeyZipper, form="zip_with_iter"):
    """Yield each item together with the item of another pipe that has the same key.

    The order is the parent's. The other pipe is read until a key matches; items passed over are
    kept for later. Beyond a limit the oldest are dropped, with one warning in each pass.

    - ``key_fn``, ``ref_key_fn``: return the key of an item of the parent and of ``ref_datapipe``;
      the same function by default.
    - ``merge_fn``: makes one item of two; a tuple by default.
    - ``keep_key``: whether ``(key, merged)`` is yielded.
    - ``buffer_size``: number of items that are kept; None for all.
    - ``buffer_bytes``: bytes that they may take, with the data of arrays and tensors; the last one
      may take more. None for 1 GiB, or for any number if ``buffer_size`` is None.

    Raises
    ------
    BufferError
        While iterating: no item has the key, or the one that had it was dropped.
    ValueError
        While iterating: two items that are kept have the same key.

    Examples
    --------
    >>> from operator import itemgetter
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> images = IterableWrapper([("a", "a.nii"), ("b", "b.nii")])
    >>> ages = IterableWrapper([("b", 61), ("a", 44)])
    >>> list(images.zip_with_iter(ages, key_fn=itemgetter(0)))
    [(('a', 'a.nii'), ('a', 44)), (('b', 'b.nii'), ('b', 61))]
    """

    def __init__(
        self,
        source_datapipe: Pipe,
        ref_datapipe: Any,
        key_fn: Callable[[Any], Hashable],
        ref_key_fn: Callable[[Any], Hashable] | None = None,
        keep_key: bool = False,
        buffer_size: int | None = 10000,
        merge_fn: Callable[[Any, Any], Any] | None = None,
        *,
        buffer_bytes: int | None = None,
    ) -> None:
        super().__init__(source_datapipe, key_fn, merge_fn, keep_key)
        if not isinstance(ref_datapipe, IterDataPipe):
            msg = f"ref_datapipe must be a IterDataPipe, but its type is {type(ref_datapipe)}"
            raise TypeError(msg)
        self.reference = ref_datapipe
        self.ref_key_fn = key_fn if ref_key_fn is None else function("ref_key_fn", ref_key_fn)
        self.buffer_size = (
            None if buffer_size is None else validate_int("buffer_size", buffer_size, least=1)
        )
        self.buffer_bytes = buffer_limit(buffer_bytes, no_limit=buffer_size is None)

    def __iter__(self) -> Iterator[Any]:
        buffer = _KeyBuffer(self.buffer_size, self.buffer_bytes)
        reference = iter(self.reference)
        has_warned = False
        try:
            for item in self.parent:
                key = self.key_fn(item)
                while key not in buffer:
                    other = next(reference, _END)
                    if other is _END:
                        raise BufferError(
                            "No matching key can be found from reference DataPipe for the data "
                            f"{item!r}. It has none, or it came earlier and was dropped: give a "
                            "larger buffer_size= or buffer_bytes=."
                        )
                    full = buffer.add(self.ref_key_fn(other), other)
                    if full and not has_warned:
                        has_warned = True
                        warn(f"{_DROPPED_HINT} {full}", UserWarning, self.origin)
                yield self._join(key, item, buffer.take(key))
        finally:
            StreamWrapper.close_streams(buffer.items)


class _KeyBuffer:
    """Items by key, the oldest first, as many as may be kept."""

    def __init__(self, most: int | None, most_bytes: int | None) -> None:
        self._most, self._most_bytes = most, most_bytes
        self.items: dict[Hashable, tuple[Any, int]] = {}
        self._bytes = 0

    def __contains__(self, key: Hashable) -> bool:
        return key in self.items

    def add(self, key: Hashable, item: Any) -> str:
        """Keep an item; return which limit it went beyond, if others were dropped for it."""
        if key in self.items:
            raise ValueError(f"Duplicate key is found in reference DataPipe: {key!r}")
        size = 0 if self._most_bytes is None else bytes_of(item)
        limit = self._full(size)
        while self._full(size):
            StreamWrapper.close_streams(self.take(next(iter(self.items))))
        self.items[key] = item, size
        self._bytes += size
        return limit

    def _full(self, size: int) -> str:
        """Return which limit an item of so many bytes would go beyond; nothing if it fits."""
        count = len(self.items)
        if self._most is not None and count >= self._most:
            return f"zip_with_iter() keeps {count} items, and buffer_size is {self._most}."
        if count and self._most_bytes is not None and self._bytes + size > self._most_bytes:
            content = f"{count} items of {self._bytes} bytes, and one of {size} came"
            return f"zip_with_iter() keeps {content}; buffer_bytes is {self._most_bytes}."
        return ""

    def take(self, key: Hashable) -> Any:
        item, size = self.items.pop(key)
        self._bytes -= size
        return item


class MapKeyZipper(_KeyZipper, form="zip_with_map"):
    """Yield each item together with the value of a map-style pipe for its key.

    ``key_fn``, ``merge_fn`` and ``keep_key`` are those of :class:`IterKeyZipper`. A key without a
    value is a ``KeyError``.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> from voxpipe.datapipes.map import SequenceWrapper
    >>> ages = SequenceWrapper({"a.nii": 44, "b.nii": 61})
    >>> list(IterableWrapper(["b.nii", "a.nii"]).zip_with_map(ages, key_fn=str))
    [('b.nii', 61), ('a.nii', 44)]
    """

    def __init__(
        self,
        source_iterdatapipe: Pipe,
        map_datapipe: Any,
        key_fn: Callable[[Any], Hashable],
        merge_fn: Callable[[Any, Any], Any] | None = None,
        keep_key: bool = False,
    ) -> None:
        super().__init__(source_iterdatapipe, key_fn, merge_fn, keep_key)
        if not isinstance(map_datapipe, MapDataPipe):
            msg = f"map_datapipe must be a MapDataPipe, but its type is {type(map_datapipe)}"
            raise TypeError(msg)
        self.mapping = map_datapipe

    def __iter__(self) -> Iterator[Any]:
        for item in self.parent:
            key: Any = self.key_fn(item)
            try:
                other = self.mapping[key]
            except (KeyError, IndexError) as error:
                msg = f"key_fn maps {item!r} to {key!r}, which is not a valid key in the given "
                raise KeyError(msg + "MapDataPipe.") from error
            yield self._join(key, item, other)


class SampleMultiplexer(Drawing):
    """Yield items of several pipes, each time one of a pipe that is drawn by weight.

    Weights are above 0, by pipe. When one is exhausted the others go on, by their relative weights.
    ``seed`` makes every pass the same outside a loader. In a loader each epoch differs in any case,
    and depends on the loader's seed too.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> often, rarely = IterableWrapper([0] * 6), IterableWrapper([1] * 6)
    >>> mixed = SampleMultiplexer({often: 3, rarely: 1}, seed=0)
    >>> sorted(mixed), list(mixed) == list(mixed)
    ([0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1], True)
    """

    form_name = "SampleMultiplexer"

    def __init__(
        self, pipes_to_weights_dict: Mapping[Pipe, float], seed: int | None = None
    ) -> None:
        super().__init__()
        if not pipes_to_weights_dict:
            raise ValueError("Empty dictionary passed to SampleMultiplexer: it mixes pipes")
        self.parents = iterable_pipes("SampleMultiplexer", tuple(pipes_to_weights_dict))
        self.weights = tuple(pipes_to_weights_dict.values())
        for weight in self.weights:
            if not weight > 0:
                raise ValueError(f"Expecting a positive and non-zero weight, got {weight}")
        self.seed = seed
        # The pipes were arguments: kept as such, they would travel along with every copy.
        self._arguments = ((self.weights,), {"seed": seed})
        call = f"SampleMultiplexer({len(self.parents)} pipes)"
        self.origin = CallSite(call, self.origin.file, self.origin.line)

    def reset(self) -> None:
        if self._seed is None and self.seed is not None:
            self._rng.seed(self.seed)
        else:
            super().reset()

    def seed_of_pass(self, seed: int) -> int:
        if self.seed is None:
            return seed
        return Stream(seed % 2**64, 0, (), f"SampleMultiplexer {self.seed}").integer()

    def __iter__(self) -> Iterator[Any]:
        running = [iter(pipe) for pipe in self.parents]
        weights = list(self.weights)
        while running:
            (index,) = self._rng.choices(range(len(running)), weights)
            item = next(running[index], _END)
            if item is _END:
                del running[index], weights[index]
            else:
                yield item

    def __len__(self) -> int:
        return sum(length_of(self, pipe) for pipe in self.parents)
