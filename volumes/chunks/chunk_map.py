"""Where the chunks of an array lie: what a format says, and what must be read to say it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ...storage.coalesce import Span
from ...storage.ranges import ReadRange
from .chunked_array import Index


class Lookup(NamedTuple):
    """How to find out where chunks lie."""

    requests: Sequence[ReadRange]
    """What must be read first; empty if everything is known."""
    places: Callable[[Sequence[bytes | None]], list[ReadRange | None]]
    """Returns where each chunk lies, of the answers; None for one that is known not to be."""
    extents: Callable[[], Mapping[str, Span]] = dict
    """Returns from where to where objects that hold many chunks hold any, by object; after
    ``places``."""


class ChunkMap(Protocol):
    """Where the chunks of one array lie."""

    def lookup(self, chunks: Sequence[Index]) -> Lookup:
        """Return how to find out where each chunk lies; reads nothing."""

    def locate(self, chunks: Sequence[Index]) -> list[ReadRange | None]:
        """Return where each chunk lies; None for one that is known not to be stored."""
