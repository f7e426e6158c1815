"""What a worker is busy with, in the words of messages."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...core import CallSite


@dataclass(frozen=True)
class Doing:
    """What a worker is busy with, for messages."""

    what: str
    """The batch, its cases and their files."""
    origin: CallSite | None = None
    """The pipe that it runs, as the user wrote it."""
    seconds: float = math.inf
    """For how long it may be at that."""

    def __str__(self) -> str:
        return self.what if self.origin is None else f"{self.what}, in {self.origin}"
