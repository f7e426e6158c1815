"""Divide a pipe at random: for training and for validation."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from ...core.validate import validate_int
from ...graph import Pipe, Traits
from ..datapipe import DataPipe, length_of
from ..forms import offered


@offered("random_split")
class RandomSplitter(DataPipe):
    """Return a list of pipes among which the parent's items are divided at random.

    Parameters
    ----------
    source_datapipe
        The parent. It has to yield the same items in the same order whenever it is iterated:
        split before you shuffle.
    weights
        Weight by name of the part. Whole numbers that add up to ``total_length`` are the
        lengths of the parts.
    seed
        Of the division. It stays from epoch to epoch, so that nothing of one part ever comes up
        in another; ``override_seed`` of any part changes it for all.
    total_length
        Number of items; by default ``len()`` of the parent.
    target
        Name of the one part to return instead of the list.

    Notes
    -----
    The same seed divides as it does in torchdata 0.9. Nothing is buffered: one part can be
    iterated at a time, and each goes through the whole parent.

    Raises
    ------
    TypeError
        If the parent has no length and none is given.
    KeyError
        If there is no part of the name ``target``.
    ValueError
        If the weights make no sense; while iterating: if there are more items than
        ``total_length``.

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
        """Return the parts, or one of them."""
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
            msg = f"`target={target}` does not match any key in `weights`."
            raise KeyError(msg)
        division = Division(
            dict(weights), seed, validate_int("total_length", total_length, least=0)
        )
        parts = {name: SplitterIterator(source_datapipe, division, name) for name in weights}
        return list(parts.values()) if target is None else parts[target]


class Division:
    """Which part gets which item: drawn one after the other, the weights without replacement.

    Parameters
    ----------
    weights
        Weight by name of the part.
    seed
        Of the draws.
    total_length
        How many items there are.
    """

    def __init__(self, weights: dict[Any, float], seed: int, total_length: int) -> None:
        self.weights = weights
        self.seed = seed
        self.total_length = total_length

    def _scaled(self, weights: list[float], length: int) -> list[float]:
        total = sum(weights)
        return [float(weight) * length / total for weight in weights]

    def draws(self) -> Iterator[Any]:
        """Yield the name of the part for one item after the other."""
        rng = random.Random(self.seed)
        names = list(self.weights)
        left = self._scaled(list(self.weights.values()), self.total_length)
        for drawn in range(1, self.total_length + 1):
            name = rng.choices(names, left)[0]
            index = names.index(name)
            left[index] -= 1
            if left[index] < 0:
                left[index] = 0
                # What is left goes to the others; after the last item there is nothing.
                if sum(left) > 0:
                    left = self._scaled(left, self.total_length - drawn)
            yield name

    def length(self, name: Any) -> int:
        """Return the length of a part; TypeError unless the weights are the lengths."""
        scaled = self._scaled(list(self.weights.values()), self.total_length)
        if not all(weight.is_integer() for weight in scaled):
            msg = "Lengths of the split cannot be known in advance. Please supply integer "
            msg += "`weights` that sum up to `total_length`, or use `.set_length(...)`."
            raise TypeError(msg)
        return int(scaled[list(self.weights).index(name)])


class SplitterIterator(DataPipe):
    """One part of a division.

    Parameters
    ----------
    parent
        What is divided.
    division
        Shared by all parts.
    target
        Name of this part.
    """

    traits: ClassVar[Traits] = Traits()
    chained = "random_split"

    def __init__(self, parent: Pipe, division: Division, target: Any) -> None:
        super().__init__()
        self.parent = parent
        self.division = division
        self.target = target

    def override_seed(self, seed: int) -> SplitterIterator:
        """Divide otherwise from the next pass on; this holds for all parts."""
        self.division.seed = seed
        return self

    def describe(self) -> str:
        """Return which part of what it is."""
        return f"random_split({self.division.weights})[{self.target!r}]"

    def settings(self) -> Any:
        """Return what the division depends on, and which part this is."""
        of = self.division
        return (list(of.weights.items()), of.seed, of.total_length, self.target)

    def __iter__(self) -> Iterator[Any]:
        """Yield the items of this part."""
        draws = self.division.draws()
        for item in self.parent:
            name = next(draws, draws)
            if name is draws:
                msg = f"there are more items than total_length={self.division.total_length}"
                raise ValueError(msg)
            if name == self.target:
                yield item

    def __len__(self) -> int:
        """Return the length of this part; TypeError unless the weights are lengths."""
        return self.division.length(self.target)
