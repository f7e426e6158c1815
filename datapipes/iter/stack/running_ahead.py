"""Pipes in which a thread makes items ahead: how it pauses, and how it ends."""

from __future__ import annotations

from typing import ClassVar

from .ahead import Ahead
from .running import Running


class RunningAhead(Running):
    """A pipe with one thread per pass, which a subclass starts in ``__iter__``."""

    running: ClassVar[tuple[str, ...]] = ("_ahead",)
    _ahead: Ahead | None

    def fresh(self) -> None:
        """Begin without a thread."""
        self._ahead = None

    def reset(self) -> None:
        """End the thread of the pass before; torch calls this when a new one begins."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.stop()

    def pause(self) -> None:
        """Return when nothing more is made ahead; what was made can still be taken.

        Raises
        ------
        PrefetchTimeoutError
            The item at hand took too long.
        """
        if self._ahead is not None:
            self._ahead.pause()

    def resume(self) -> None:
        """Go on after :meth:`pause`."""
        if self._ahead is not None:
            self._ahead.resume()

    def shutdown(self) -> None:
        """End the thread, if there is one, and drop what it made; any number of times."""
        self.reset()
