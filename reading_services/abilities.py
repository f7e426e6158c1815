"""What a reading service may do beyond the contract: one protocol for each, asked for by name.

A service of the user's has what it has; nothing here has to be inherited.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from ..volumes.scheme import Budget
from .work import Work


@runtime_checkable
class Budgeting(Protocol):
    """A service that limits what reading may spend."""

    def budgets(self, work: Work | None = None, *, remote: bool = False) -> tuple[Budget, ...]:
        """Return what reading ``work`` may spend, the first choice first."""


@runtime_checkable
class Checkpointing(Protocol):
    """A service with a state of its own, which travels in that of the loader."""

    def checkpoint(self) -> bytes | None:
        """Return the state; None if there is none now."""


@runtime_checkable
class Restoring(Protocol):
    """A service that can take its state back."""

    def restore(self, state: bytes) -> None:
        """Let the next epoch begin from a state."""


@runtime_checkable
class Refusing(Protocol):
    """A service that stands for others, of which not all can take a state back."""

    def refuse_state(self) -> None:
        """Raise ``TypeError`` if this one cannot; nothing is changed."""


@runtime_checkable
class Dividing(Protocol):
    """A service that makes only its part of every batch."""

    def divided(self, work: Work) -> Work:
        """Return what this rank does of ``work``."""
