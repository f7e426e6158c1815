"""Pipes that divide one parent: branches that share its single pass, and parts at random."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.utils.data.datapipes.utils.common import StreamWrapper

from ...core.call_site import warn
from ...core.errors import add_location
from ...core.locks import ForkSafeLock
from ...core.validate import validate_int
from ...datapipes.datapipe import DataPipe, Running, length_of
from ...datapipes.tensors import buffer_limit, bytes_of
from ...graph import Pipe

NO_LIMIT = -1  # as ``buffer_size``: no limit


class _Trunk(Running, DataPipe):
    """Deals the items of the parent out to branches, and buffers items not read yet."""

    form_name = "unzip"
    running = (
        *("_lock", "_items", "_waiting", "_bytes", "_absent", "_has_begun", "_at_end", "_overflow"),
        "_generation",
    )

    def __init__(
        self,
        parent: Pipe,
        count: int,
        buffer_size: int,
        buffer_bytes: int | None = None,
        columns: Sequence[int] | None = None,
    ) -> None:
        super().__init__(parent)
        self.count, self.columns = count, columns
        self.buffer_size = validate_int("buffer_size", buffer_size, least=NO_LIMIT)
        self.buffer_bytes = buffer_limit(buffer_bytes, no_limit=buffer_size == NO_LIMIT)
        if self.buffer_bytes is None:
            text = f"Unlimited buffer size is set for `{self.form_name}`: a branch that is read "
            text += "much faster than another can fill the memory"
            warn(text, UserWarning)
        self.fresh()

    def fresh(self) -> None:
        # A branch that waits for an item keeps the others waiting: there is one parent.
        self._lock = ForkSafeLock()
        self._generation = 0
        self._restart()

    def describe(self) -> str:
        return f"{self.form_name}({self.count} pipes)"

    def _restart(self) -> None:
        self._items: Iterator[Any] | None = None
        self._waiting: list[deque[tuple[Any, int]]] = [deque() for _ in range(self.count)]
        self._bytes = 0
        self._absent = [False] * self.count
        self._has_begun = self._at_end = False
        self._overflow: BufferError | None = None
        self._generation += 1

    def reset(self) -> None:
        """Begin a pass, and close the streams that were not read."""
        with self._lock:
            self._drop()
            self._restart()

    def __iter__(self) -> Iterator[Any]:
        raise TypeError(f"{self.form_name}() is read through the pipes that it returned")

    def items_of(self, branch: int) -> Iterator[Any]:
        generation = self._generation
        try:
            while True:
                with self._lock:
                    own = self._waiting[branch]
                    while generation == self._generation and not (own or self._at_end):
                        if self._overflow is not None:
                            raise self._overflow
                        self._read(branch)
                    if generation != self._generation or not own:
                        return
                    item, size = own.popleft()
                    self._bytes -= size
                yield item
        finally:
            with self._lock:
                if generation == self._generation:
                    self._absent[branch] = True
                    if all(self._absent):
                        self._drop()

    def _read(self, asker: int) -> None:
        """Deal out one more item of the parent."""
        if self._items is None:
            self._items, self._has_begun = iter(enumerate(self.parent)), True
        following = next(self._items, None)
        if following is None:
            self._at_end, self._items = True, None
            return
        number, item = following
        dealt = [(number % self.count, item)]
        if self.columns is not None:
            dealt = [(branch, item[column]) for branch, column in enumerate(self.columns)]
        for branch, value in dealt:
            # The value of the asking branch is yielded at once.
            size = 0 if branch == asker or self.buffer_bytes is None else bytes_of(value)
            self._waiting[branch].append((value, size))
            self._bytes += size
        waiting = [0 if b == asker else len(queue) for b, queue in enumerate(self._waiting)]
        self._overflow = self._too_far(waiting)
        if self._overflow is not None:
            raise self._overflow

    def _too_far(self, waiting: list[int]) -> BufferError | None:
        """Return an error if more waits than may; ``waiting`` items for each branch."""
        # All waiting items, or the lag of the slowest column.
        room = sum(waiting) if self.columns is None else max(waiting)
        if self.buffer_size != NO_LIMIT and room > self.buffer_size:
            what = f"buffer size {self.buffer_size} is insufficient"
            more = "buffer_size="
        elif self.buffer_bytes is not None and self._bytes > self.buffer_bytes and max(waiting) > 1:
            what = f"{sum(waiting)} items wait that take {self._bytes} bytes"
            what += f", and buffer_bytes is {self.buffer_bytes}"
            more = "buffer_bytes="
        else:
            return None
        text = f"{self.form_name}() buffer overflow, {what}: one branch is read that much further "
        text += f"than another. Read them in turn, or give a larger {more}."
        error = BufferError(text)
        add_location(error, self.origin)
        return error

    def _drop(self) -> None:
        self._items = None
        for queue in self._waiting:
            while queue:
                StreamWrapper.close_streams(queue.popleft()[0])
        self._bytes = 0


class Branch(DataPipe):
    """One branch of a :class:`_Trunk`."""

    # torch's iterator hook asks for this, for two methods below, and for the name of the trunk.
    _is_child_datapipe = True
    _valid_iterator_id: int | None

    def __init__(self, trunk: _Trunk, number: int) -> None:
        super().__init__()
        self.main_datapipe: Any = trunk
        self.number = number

    def describe(self) -> str:
        return f"{self.main_datapipe.form_name}(…)[{self.number}]"

    def __iter__(self) -> Iterator[Any]:
        return self.main_datapipe.items_of(self.number)  # type: ignore[no-any-return]

    def __len__(self) -> int:
        trunk = self.main_datapipe
        length = length_of(trunk, trunk.parent)
        if trunk.columns is not None:
            return length
        each, more = divmod(length, trunk.count)
        return int(each + (self.number < more))

    def _set_main_datapipe_valid_iterator_id(self) -> int:
        trunk = self.main_datapipe
        if trunk._valid_iterator_id is None:
            trunk._valid_iterator_id = 0
        elif trunk._valid_iterator_id == self._valid_iterator_id:
            # This branch has an iterator of this generation: a second one begins the next.
            trunk._valid_iterator_id += 1
            if trunk._has_begun and not (trunk._at_end and all(trunk._absent)):
                text = "Some child DataPipes are not exhausted when __iter__ is called. We are "
                text += "resetting the buffer and each child DataPipe will read from the start."
                warn(text, UserWarning)
            trunk.reset()
        self._valid_iterator_id = trunk._valid_iterator_id
        return int(trunk._valid_iterator_id)

    def _check_valid_iterator_id(self, iterator_id: int) -> bool:
        current: int | None = self.main_datapipe._valid_iterator_id
        return iterator_id == self._valid_iterator_id == current


def kept_columns(sequence_length: int, columns_to_skip: Sequence[int] | None) -> list[int]:
    """Return the columns that are not skipped."""
    skips = {*(columns_to_skip or ())}
    length = validate_int("sequence_length", sequence_length, least=1)
    columns = [column for column in range(length) if column not in skips]
    if not columns:
        raise RuntimeError(f"unzip() skips all {length} columns; leave one out of columns_to_skip=")
    return columns


class UnZipper(DataPipe, form="unzip"):
    """Return a list of pipes, one per column of the parent's sequences.

    - ``sequence_length``: number of columns; those in ``columns_to_skip`` have no pipe.
    - ``buffer_size``: how far one pipe may be read beyond another, in items; -1 for any distance.
    - ``buffer_bytes``: bytes of waiting items, with the data of arrays and tensors; one item of
      each pipe may take more. None for 1 GiB, or for any number if ``buffer_size`` is -1.

    A pipe that is read too far beyond another raises ``BufferError``.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> numbers, letters = IterableWrapper([(0, "a"), (1, "b")]).unzip(2)
    >>> list(numbers), list(letters)
    ([0, 1], ['a', 'b'])
    """

    def __new__(  # type: ignore[misc]
        cls,
        source_datapipe: Pipe,
        sequence_length: int,
        buffer_size: int = 1000,
        columns_to_skip: Sequence[int] | None = None,
        *,
        buffer_bytes: int | None = None,
    ) -> list[Branch]:
        columns = kept_columns(sequence_length, columns_to_skip)
        trunk = _Trunk(source_datapipe, len(columns), buffer_size, buffer_bytes, columns)
        return [Branch(trunk, number) for number in range(len(columns))]


class RoundRobinDemultiplexer(DataPipe, form="round_robin_demux"):
    """Return a list of ``num_instances`` pipes among which the items are dealt out in turn.

    One pipe is the parent itself, with a warning. The limits of waiting items are as of
    :class:`UnZipper`: ``buffer_size`` counts the items of all pipes. More raise ``BufferError``.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> even, odd = IterableWrapper(range(5)).round_robin_demux(2)
    >>> list(even), len(odd), list(odd)
    ([0, 2, 4], 2, [1, 3])
    """

    def __new__(  # type: ignore[misc]
        cls,
        datapipe: Pipe,
        num_instances: int,
        buffer_size: int = 1000,
        *,
        buffer_bytes: int | None = None,
    ) -> list[Any]:
        if validate_int("num_instances", num_instances, least=1) == 1:
            text = "The operation of `round_robin_demux` with `num_instances=1` is an no-op and "
            warn(text + "returns the provided `datapipe` in a list directly", UserWarning)
            return [datapipe]
        trunk = _InTurn(datapipe, num_instances, buffer_size, buffer_bytes)
        return [Branch(trunk, number) for number in range(num_instances)]


class _InTurn(_Trunk):
    form_name = "round_robin_demux"


class RandomSplitter(DataPipe, form="random_split"):
    """Return a list of pipes among which the parent's items are divided at random.

    The same seed divides as it does in torchdata 0.9. Nothing is buffered: one part can be
    iterated at a time, and each goes through the whole parent. The parent has to yield the same
    items in the same order whenever it is iterated: split before you shuffle.

    Parameters
    ----------
    weights
        Weight by name of the part. Whole numbers that add up to ``total_length`` are the
        lengths of the parts.
    seed
        Of the division. It stays from epoch to epoch, so that nothing of one part ever comes up
        in another; ``override_seed`` of any part changes it for all.
    total_length
        Number of items, by default ``len()`` of the parent; more of them are a ``ValueError``.
    target
        Name of the one part to return instead of the list.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> train, valid = IterableWrapper(range(10)).random_split({"train": 0.5, "valid": 0.5}, seed=0)
    >>> list(train), list(valid)
    ([2, 3, 5, 7, 8], [0, 1, 4, 6, 9])
    """

    def __new__(
        cls,
        source_datapipe: Pipe,
        weights: Mapping[Any, float],
        seed: int,
        total_length: int | None = None,
        target: Any = None,
    ) -> Any:
        if total_length is None:
            try:
                total_length = length_of(source_datapipe, source_datapipe)
            except TypeError:
                msg = "RandomSplitter needs `total_length`, but it is unable to infer it from the "
                msg += f"`source_datapipe`: {source_datapipe}."
                raise TypeError(msg) from None
        if not weights or min(weights.values()) < 0 or not sum(weights.values()) > 0:
            msg = f"random_split() takes weights of at least 0 and one above it, got {weights}"
            raise ValueError(msg)
        if target is not None and target not in weights:
            raise KeyError(f"`target={target}` does not match any key in `weights`.")
        length = validate_int("total_length", total_length, least=0)
        division = _Division(dict(weights), seed, length)
        parts = {name: SplitterIterator(source_datapipe, division, name) for name in weights}
        return list(parts.values()) if target is None else parts[target]


@dataclass
class _Division:
    """Which part gets which item: drawn one after the other, the weights without replacement."""

    weights: dict[Any, float]
    seed: int
    total_length: int

    def scale(self, weights: Iterable[float], length: int) -> list[float]:
        total = sum(weights := list(weights))
        return [float(weight) * length / total for weight in weights]

    def draws(self) -> Iterator[Any]:
        rng = random.Random(self.seed)
        names = list(self.weights)
        weights = self.scale(self.weights.values(), self.total_length)
        for number in range(1, self.total_length + 1):
            name = rng.choices(names, weights)[0]
            index = names.index(name)
            weights[index] -= 1
            if weights[index] < 0:
                weights[index] = 0
                # The other parts share the remaining items; after the last item none remain.
                if sum(weights) > 0:
                    weights = self.scale(weights, self.total_length - number)
            yield name


class SplitterIterator(DataPipe):
    """One part of a division."""

    form_name = "random_split"

    def __init__(self, parent: Pipe, division: _Division, target: Any) -> None:
        super().__init__(parent)
        self.division = division
        self.target = target

    def override_seed(self, seed: int) -> SplitterIterator:
        """Divide otherwise from the next pass on; this holds for all parts."""
        self.division.seed = seed
        return self

    def describe(self) -> str:
        return f"random_split({self.division.weights})[{self.target!r}]"

    def settings(self) -> Any:
        of = self.division
        return (list(of.weights.items()), of.seed, of.total_length, self.target)

    def __iter__(self) -> Iterator[Any]:
        draws = self.division.draws()
        for item in self.parent:
            name = next(draws, draws)
            if name is draws:
                msg = f"there are more items than total_length={self.division.total_length}"
                raise ValueError(msg)
            if name == self.target:
                yield item

    def __len__(self) -> int:
        """Return the length of the part; TypeError unless the weights are the lengths."""
        of = self.division
        weights = of.scale(of.weights.values(), of.total_length)
        if not all(weight.is_integer() for weight in weights):
            msg = "Lengths of the split cannot be known in advance. Please supply integer "
            msg += "`weights` that sum up to `total_length`, or use `.set_length(...)`."
            raise TypeError(msg)
        return int(weights[list(of.weights).index(self.target)])
