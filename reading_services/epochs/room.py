"""How far ahead batches may be made, in bytes."""

from __future__ import annotations


class Room:
    """Counts the batches that have arrived and wait, and guesses those that are on their way.

    Parameters
    ----------
    limit
        Bytes that may wait or be on their way together.
    unknown
        Batches that may be on their way before the first has arrived, whatever they take.

    Examples
    --------
    >>> room = Room(100, unknown=2)
    >>> room.arrived(0, 40)
    >>> room.has_room(in_flight=0), room.has_room(in_flight=1)
    (True, False)
    >>> room.taken(0)
    >>> room.has_room(in_flight=1)
    True
    """

    def __init__(self, limit: int, unknown: int) -> None:
        self.limit = limit
        """Bytes that may wait or be on their way together."""
        self._unknown = unknown
        self._waiting: dict[object, int] = {}
        self._largest = 0

    def arrived(self, batch: object, size: int) -> None:
        """Count a batch that waits for its turn."""
        self._waiting[batch] = size
        self._largest = max(self._largest, size)

    def taken(self, batch: object) -> None:
        """Count it no longer: it was handed over."""
        self._waiting.pop(batch, None)

    def has_room(self, in_flight: int) -> bool:
        """Whether one more batch may be asked for; each counts as the largest so far."""
        if not self._largest:
            return in_flight < self._unknown
        expected = (in_flight + 1) * self._largest
        return sum(self._waiting.values()) + expected <= self.limit

    def clear(self) -> None:
        """Count nothing any more."""
        self._waiting.clear()
