"""How long the loader waits before it says what it was waiting for."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

from ..datapipes import PerItem
from ..graph import Pipe, Rewritten, Rule, Traits, find
from .adapter import Adapter

# Starting an interpreter and importing torch takes 2 to 6 s on two cores, and tens of
# seconds from a busy network disk.
START_SECONDS = 120.0
# A batch from a slow bucket takes seconds; ten minutes without one is a hang.
ITEM_SECONDS = 600.0
# What is still running a second after it was asked to stop is killed.
STOP_SECONDS = 1.0


@dataclasses.dataclass(frozen=True)
class Limits:
    """Seconds that each kind of wait may take."""

    start: float = START_SECONDS
    """From the start of an epoch to its first batch, on top of ``item``."""
    item: float = ITEM_SECONDS
    """From asking for a batch to getting it."""
    stop: float = STOP_SECONDS
    """From asking a worker to stop to killing it."""
    enforced: bool = False
    """Whether the user asked: in-process waits are only watched then, which takes a thread."""


class Timeout(Adapter):
    """Set how long a batch may take; then ``ItemTimeout`` names what was being done.

    Parameters
    ----------
    item
        Seconds from asking for a batch to getting it. ``math.inf``, or more than a week, here and
        below: no limit.
    start
        Seconds that the first batch of an epoch may take in addition.
    stop
        Seconds that workers get to end by themselves.

    Notes
    -----
    Without this adapter the limits are 600, 120 and 1 s with workers, and none in
    process, where nothing can be interrupted without a thread.
    """

    def __init__(
        self,
        item: float = ITEM_SECONDS,
        *,
        start: float = START_SECONDS,
        stop: float = STOP_SECONDS,
    ) -> None:
        for name, value in (("item", item), ("start", start), ("stop", stop)):
            if not value > 0:
                msg = f"a timeout is a positive number of seconds, got {name}={value!r}"
                raise ValueError(msg)
        self.limits = Limits(start=start, item=item, stop=stop, enforced=True)

    def rules(self) -> Sequence[Rule]:
        """Return nothing: the limits are set on the sink alone."""
        return ()

    def rewrite(self, pipe: Pipe) -> Rewritten:
        """Return the graph with the limits on its sink."""
        if limits_of(pipe) == self.limits:
            return Rewritten(pipe, pipe)
        return Rewritten(pipe, Limited(pipe, self.limits))

    def __repr__(self) -> str:
        return f"Timeout(item={self.limits.item:g})"


class Limited(PerItem):
    """Passes items on, and says for the reading service how long they may take."""

    traits: ClassVar[Any] = Traits(per_item=True, watches=True)

    def __init__(self, parent: Pipe, limits: Limits) -> None:
        super().__init__(parent)
        self.limits = limits

    def instructions(self) -> tuple[()]:
        """Return nothing: whoever asks for a batch watches the clock."""
        return ()

    def apply(self, item: Any) -> Any:
        """Return the item as it is; whoever asks for it watches the clock."""
        return item


def limits_of(sink: Pipe) -> Limits:
    """Return the limits that hold for a graph: those set nearest to its sink."""
    found = find(sink, Limited)
    return found[-1].limits if found else Limits()
