"""How long the loop around a loader keeps a batch before it asks for the next."""

from __future__ import annotations

from collections import deque
from statistics import median

# The first batches include compiling and warming up; the median of so many is not moved by them.
KEPT = 64


class Pace:
    """Times between handing a batch out and being asked for the next, the last ``KEPT`` of them.

    Examples
    --------
    >>> pace = Pace()
    >>> for asked, handed in [(0.0, 1.0), (1.5, 1.75), (2.5, 3.0)]:
    ...     pace.asked(asked)
    ...     pace.handed(handed)
    >>> pace.seconds()
    0.625
    """

    def __init__(self) -> None:
        self._kept: deque[float] = deque(maxlen=KEPT)
        self._handed: float | None = None

    def handed(self, now: float) -> None:
        """Note that a batch was handed out."""
        self._handed = now

    def asked(self, now: float) -> None:
        """Note that the next one was asked for."""
        if self._handed is not None:
            self._kept.append(now - self._handed)
        self._handed = None

    def interrupt(self) -> None:
        """Leave out the time until the next batch: an epoch ended, or something else ran."""
        self._handed = None

    def seconds(self) -> float | None:
        """Return the median time that a batch was kept; None if none has come back."""
        return median(self._kept) if self._kept else None
