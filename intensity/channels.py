"""Channel ops: which channels there are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.errors import VolumeError
from ..core.validate import as_number, as_probability, entries_of, is_integer
from .noise import philox
from .random_op import RandomValueOp
from .value_op import Drawn, Facts, ValueOp

_PER_WORD = 2.0**-32


@dataclass(frozen=True)
class SelectChannels(ValueOp):
    """Keep some channels, in the order given.

    Examples
    --------
    >>> SelectChannels((2, 0)).describe()
    'select_channels 2, 0'
    """

    indices: int | tuple[int, ...]
    """From 0; one may come more than once."""

    name: ClassVar[str] = "select_channels"
    keeps_dtype: ClassVar[bool] = True

    def __post_init__(self) -> None:
        indices = entries_of(self.indices) or (self.indices,)
        if not all(is_integer(index) and index >= 0 for index in indices):
            msg = f"indices is an integer >= 0 or several of them, got {self.indices!r}"
            raise ValueError(msg)
        object.__setattr__(self, "indices", tuple(map(int, indices)))

    def channels(self, count: int) -> int:
        """Return how many there are.

        Raises
        ------
        VolumeError
            The volume has fewer channels.
        """
        if max(entries_of(self.indices)) >= count:
            raise VolumeError(
                f"select_channels is to keep {self.indices}, of {count} channels",
                do=f"Channels are counted from 0: name some below {count}.",
            )
        return len(entries_of(self.indices))

    def kept_channels(self) -> tuple[int, ...]:
        """Return the indices."""
        return entries_of(self.indices)

    def apply(self, array: NDArray[Any], drawn: Drawn, facts: Facts) -> NDArray[Any]:
        """Return a new array."""
        self.channels(array.shape[0])
        kept: NDArray[Any] = array[list(entries_of(self.indices))]
        return kept

    def describe(self) -> str:
        """Return the indices in words."""
        return f"{self.name} {', '.join(map(str, entries_of(self.indices)))}"


@dataclass(frozen=True)
class MeanOfChannels(ValueOp):
    """The mean of all channels, as one.

    Examples
    --------
    >>> MeanOfChannels().describe()
    'mean_of_channels'
    """

    name: ClassVar[str] = "mean_of_channels"

    def channels(self, count: int) -> int:
        """Return 1."""
        return 1

    def apply(self, array: NDArray[Any], drawn: Drawn, facts: Facts) -> NDArray[Any]:
        """Return a new array."""
        mean: NDArray[Any] = array.mean(axis=0, keepdims=True, dtype=np.float32)
        return mean

    def describe(self) -> str:
        """Return the op in words."""
        return self.name


@dataclass(frozen=True)
class DropChannels(RandomValueOp):
    """Fill whole channels with one value; at least one stays.

    Examples
    --------
    >>> DropChannels(0.25).describe()
    'drop_channels chance 0.25'
    """

    chance: float
    """Of each channel, 0 to 1."""
    fill: float = 0.0
    """The value that a dropped channel has."""

    name: ClassVar[str] = "drop_channels"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "chance", as_probability("chance", self.chance))
        object.__setattr__(self, "fill", as_number("fill", self.fill))

    def draw(self, generator: np.random.Generator) -> Drawn | None:
        """Return a key for as many channels as there are, or None."""
        acts = generator.random() < self.p
        key = int(generator.random() * 2**53)  # all bits of a double
        return {"key": key} if acts else None

    def apply(self, array: NDArray[Any], drawn: Drawn, facts: Facts) -> NDArray[Any]:
        """Change ``array`` in place."""
        numbers = philox((np.arange(array.shape[0]), 0, 0, 0), drawn["key"])[0] * _PER_WORD
        dropped = numbers < self.chance
        dropped[np.argmax(numbers)] = False
        array[dropped] = self.fill
        return array

    def describe(self) -> str:
        """Return the chance in words."""
        return self.in_words(chance=self.chance)
