"""How a worker asks for the items that are dealt out to it; needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable

Feed: TypeAlias = Callable[[], Any]
"""Waits for the next item of a worker; raises ``Ended`` after the last."""


@runtime_checkable
class Fed(Protocol):
    """What makes a worker's batches of items that are dealt out to it."""

    def fed(self, feed: Feed) -> None:
        """Take them from ``feed``."""


class Ended(Exception):
    """There are no more items."""


class SourceFailed(RuntimeError):
    """The pipes that make the items have failed, in the process that runs them."""
