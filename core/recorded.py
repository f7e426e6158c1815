"""What a step drew for an item before, to be done again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Recorded:
    """A draw that was kept; a step that has one draws nothing itself."""

    drawn: Mapping[str, Any] | None
    """The parameters; None where the op did not act."""
