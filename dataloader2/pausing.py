"""How many batches an iterator still hands out before it pauses."""

from __future__ import annotations

import warnings

from ..core.validate import validate_int


class PauseIteration(StopIteration):
    """Raised in the place of a batch by an iterator that is paused: a ``for`` loop ends."""


class Pausing:
    """Counts batches against a limit. What stands still is the iterator, not its epoch."""

    def __init__(self) -> None:
        self._most: int | None = None
        self._left: int | None = None
        self._paused = False

    def limit(self, batches: int | None) -> None:
        """Pause after this many more batches; None takes the limit away."""
        if batches is not None:
            batches = validate_int("num_batches", batches, least=1)
        self._most = self._left = batches

    def pause(self) -> None:
        """Hand out nothing until :meth:`resume`."""
        self._paused = True

    def resume(self) -> None:
        """Go on, under the same limit."""
        if not self._paused:
            warnings.warn("this iterator is not paused: resume() does nothing", stacklevel=3)
        self._paused, self._left = False, self._most

    def ask(self) -> None:
        """Raise :class:`PauseIteration` if there is no batch to be had now."""
        if self._paused:
            raise PauseIteration

    def handed(self) -> None:
        """Note that a batch was handed out."""
        if self._left is not None:
            self._left -= 1
            self._paused = self._left <= 0
