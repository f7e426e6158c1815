"""Where a loader is: handed over as one value, so that no part of it is left behind."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..reading_services import Epoch
from ..reading_services.place import Place


@dataclass(frozen=True)
class Position:
    """Where in a run a loader is.

    Examples
    --------
    >>> Position(epoch=3).after(0, failed=2)
    Position(epoch=3, place=Place(next=1, ahead=()), failed=2)
    """

    epoch: int = 0
    """Which epoch."""
    place: Place = field(default_factory=Place)
    """Which batches of it were delivered, also before a resume."""
    failed: int = 0
    """Items of it that failed, also before a resume; ``OnError`` has a budget for them."""

    def after(self, index: int, failed: int, step: int = 1) -> Position:
        """Return the position after one more batch, with so many failures in all.

        ``step`` is the distance of the batches of one worker's share.
        """
        # By name of the class: for small items dataclasses.replace is a tenth of the time.
        return Position(self.epoch, self.place.after(index, step), failed)

    def next_epoch(self) -> Position:
        """Return the beginning of the next epoch."""
        return Position(self.epoch + 1)


@dataclass
class Progress:
    """How far one epoch has come; outlives its iterator."""

    position: Position
    """Where it is."""
    begun: bool = False
    """Whether a batch was asked for."""
    batches: Epoch | None = None
    """What runs. Whoever takes over ends it, also while its iterator is being collected."""

    def close(self) -> None:
        """End what runs; any number of times."""
        batches, self.batches = self.batches, None
        if batches is not None:
            batches.close()
