"""Which batches of an epoch were delivered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..realizing import Failure


@dataclass(frozen=True)
class Place:
    """Which batches of an epoch were delivered.

    Examples
    --------
    >>> Place().after(0).after(2)
    Place(next=1, ahead=frozenset({2}))
    >>> Place().after(0).after(2).after(1)
    Place(next=3, ahead=frozenset())
    """

    next: int = 0
    """The first that was not."""
    ahead: frozenset[int] = frozenset()
    """Later ones that were."""

    def after(self, index: int) -> Place:
        """Return the place after one more batch."""
        first, ahead = self.next, {*self.ahead, index}
        while first in ahead:
            ahead.remove(first)
            first += 1
        return Place(first, frozenset(ahead))

    def holds(self, index: int) -> bool:
        """Whether a batch was delivered."""
        return index < self.next or index in self.ahead

    def leave_out(self, failures: Sequence[Failure]) -> None:
        """Say that a batch has nothing to hand out; raise if something has to stand for it."""
