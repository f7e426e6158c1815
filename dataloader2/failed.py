"""What failed in the batches that were handed out: counted, told, and refused past the budget."""

from __future__ import annotations

from collections import Counter, deque
from typing import Any

from ..batching import ErrorPolicy, Failure, Outcome
from ..core.errors import TooManyFailures

# What is kept to be looked at; the counts go on.
MOST_KEPT = 1000
# A message is read by a person.
_SHOWN = 3


class Failed:
    """What failed so far in a loader."""

    def __init__(self) -> None:
        self.kept: deque[Failure] = deque(maxlen=MOST_KEPT)
        """The last of them."""
        self.count = 0
        """How many there were, over all epochs."""
        self.errors: Counter[str] = Counter()
        """How many of each class."""

    def admit(self, outcome: Outcome, policy: ErrorPolicy, before: int) -> int:
        """Count what failed in one batch; return how many did in this epoch.

        Raises
        ------
        TooManyFailures
            Naming the last of them.
        """
        self.kept += outcome.failures
        self.count += len(outcome.failures)
        self.errors.update(failure.error for failure in outcome.failures)
        total = before + len(outcome.failures) + outcome.elsewhere
        if policy.budget is not None and total > policy.budget:
            told = "\n".join(map(str, outcome.failures[:_SHOWN])) or "on another rank"
            raise TooManyFailures(
                f"{total} items failed in this epoch, and {policy.budget} may; the last:\n{told}",
                do="Mend the files, or give OnError(budget=...) more; loader.failures has them.",
            )
        return total

    def to_json(self) -> dict[str, Any]:
        """Return the counts as plain data."""
        return {"failures": self.count, "errors": dict(self.errors)}
