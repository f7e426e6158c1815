"""Whether another worker takes the place of one that died, and what is said of it."""

from __future__ import annotations

from collections import Counter

from ...core.call_site import warn
from ...core.errors import WorkerDied, WorkerReplaced

# A worker that the system killed for lack of memory, or that a faulty library took with it, is
# seldom alone; a batch that kills whoever makes it would otherwise kill for ever.
USUAL_RESTARTS = 3


class Restarts:
    """Counts the deaths of one epoch.

    Parameters
    ----------
    limit
        Workers that may be replaced.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._deaths: Counter[str] = Counter()

    def allows(self, death: WorkerDied, doing: str, *, was_starting: bool) -> bool:
        """Count a death; return whether another worker may try, else complete the message.

        Parameters
        ----------
        death
            What is raised if not.
        doing
            What the worker had.
        was_starting
            Whether it ended by itself before it was up: so would the next one.
        """
        self._deaths[doing] += 1
        count = self._deaths.total()
        if not was_starting and count <= self._limit:
            told = (
                f"{death.what}: another one makes it again ({count} of max_restarts={self._limit})"
            )
            warn(told, WorkerReplaced, death.origin)
            return True
        if count > 1:
            same = self._deaths[doing] - 1
            had = f"{same} of them had the same" if same else "none of them had the same"
            _add(death, f"{count - 1} workers were replaced in this epoch before, {had}")
        return False

    @staticmethod
    def refused(death: WorkerDied, error: Exception) -> None:
        """Complete the message of a death: no process could be started in its place."""
        _add(death, f"no other could be started in its place: {type(error).__name__}: {error}")
        death.do = "Is there memory for another process, and may there be one more (ulimit -u)?"
        # Its frames hold this death, and so each other.
        death.__cause__ = error.with_traceback(None)


def _add(death: WorkerDied, text: str) -> None:
    """Add to its message, as the line that is printed."""
    death.what += f"; {text}"
    death.args = (death.what,)
