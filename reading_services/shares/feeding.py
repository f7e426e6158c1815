"""How a worker asks for the items that are dealt out to it; needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Feed: TypeAlias = Callable[[], Any]
"""Waits for the next item of a worker; raises ``Ended`` after the last."""


class Ended(Exception):
    """There are no more items."""


class SourceFailed(RuntimeError):
    """The pipes that make the items have failed, in the process that runs them."""
