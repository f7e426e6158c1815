"""Which of several things happen to an item: drawn once, by index."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np

from .amounts import is_integer

_TINY = 2.0**-60  # below the smallest number that a generator gives but 0

Rule = Literal["one_of", "some_of", "random_order", "random_apply"]


class Chosen(NamedTuple):
    """What one item gets."""

    members: list[int]
    """Indices, in the order in which they are done."""
    key: int
    """From which the members' own draws follow, below 2^53."""

    def generator(self, member: int, place: int) -> np.random.Generator:
        """Return the random numbers of the ``place``-th op of a member.

        Examples
        --------
        >>> chosen = Chosen([0, 1], key=7)
        >>> chosen.generator(0, 0).random() == chosen.generator(1, 0).random()
        False
        """
        # Key and counter are numbers of their own in Philox: no two of these streams meet.
        return np.random.Generator(np.random.Philox(key=self.key, counter=[0, 0, place, member]))


@dataclass(frozen=True)
class Choice:
    """How members are chosen.

    Examples
    --------
    >>> choice = Choice("some_of", 4, count=(1, 2))
    >>> chosen = choice.draw(np.random.default_rng(3))
    >>> 1 <= len(chosen.members) <= 2
    True
    """

    rule: Rule
    """``one_of``: one by its weight; ``some_of``: ``count`` different ones, in their order;
    ``random_order``: all, in any order; ``random_apply``: all or none."""
    size: int
    """Number of members."""
    weights: tuple[float, ...] = ()
    """Relative weight of each member; empty for equal ones."""
    count: tuple[int, int] = (1, 1)
    """How many are chosen, least and most."""
    p: float = 1.0
    """Probability that anything is done."""

    def __post_init__(self) -> None:
        if self.size < 1:
            msg = f"{self.rule}() needs at least one op to choose from"
            raise ValueError(msg)
        if self.weights:
            fits = len(self.weights) == self.size and sum(self.weights) > 0
            if not fits or any(w < 0 or not math.isfinite(w) for w in self.weights):
                msg = (
                    f"weights are {self.size} numbers of at least 0, one per op and not all 0, "
                    f"got {self.weights!r}"
                )
                raise ValueError(msg)
        low, high = self.count
        if not 0 <= low <= high <= self.size:
            msg = f"count is a number or (low, high) from 0 to {self.size}, got {self.count!r}"
            raise ValueError(msg)
        if self.rule == "some_of" and high > sum(w > 0 for w in self.weights or (1,) * self.size):
            msg = f"count is {high}, but fewer ops have a weight above 0: {self.weights!r}"
            raise ValueError(msg)

    def draw(self, generator: np.random.Generator) -> Chosen | None:
        """Return what happens, or None; ``3 + size`` numbers are always drawn."""
        acts, key, many = generator.random(3).tolist()
        random = generator.random(self.size).tolist()
        if acts >= self.p:
            return None
        return Chosen(self._members(random, many), int(key * 2**53))

    def unlike(self, members: Any) -> str:
        """Return why these are no members that this chooses; nothing where they are.

        Examples
        --------
        >>> Choice("one_of", 3).unlike([3])
        'one of the members 0 to 2'
        >>> Choice("one_of", 3).unlike([2])
        ''
        """
        whole = isinstance(members, (list, tuple)) and all(map(is_integer, members))
        every, last = list(range(self.size)), self.size - 1
        given = list(members) if whole else []
        if self.rule == "random_apply":
            return "" if given == every else f"all members, 0 to {last}, in turn"
        if self.rule == "random_order":
            return "" if sorted(given) == every else f"each of the members 0 to {last} once"
        low, high = (1, 1) if self.rule == "one_of" else self.count
        rising = given == sorted(set(given)) and all(0 <= n <= last for n in given)
        if whole and rising and low <= len(given) <= high:
            return ""
        count = "one" if (low, high) == (1, 1) else f"{low} to {high}"
        return f"{count} of the members 0 to {last}{', rising' if high > 1 else ''}"

    def _members(self, random: Sequence[float], many: float) -> list[int]:
        every = range(self.size)
        if self.rule == "random_apply":
            return list(every)
        if self.rule == "random_order":
            return sorted(every, key=random.__getitem__)
        low, high = self.count
        count = 1 if self.rule == "one_of" else low + int(many * (high - low + 1))
        # The largest of log(u) / w: each is first with a probability proportional to its weight,
        # and so on without putting back (Efraimidis and Spirakis 2006).
        weights = self.weights or (1.0,) * self.size
        ranks = [
            math.log(max(u, _TINY)) / w if w else -math.inf
            for u, w in zip(random, weights, strict=True)
        ]
        return sorted(sorted(every, key=lambda n: -ranks[n])[:count])
