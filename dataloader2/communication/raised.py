"""An error on its way to the side that asked."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import NoReturn

from ...core.errors import WorkerDied
from ...core.hidden import public_text
from ...reading_services.workers.told import WorkerTraceback


@dataclass(frozen=True)
class Raised:
    """An exception that a queue between processes can carry, whatever it holds."""

    error: bytes
    """The exception, pickled; empty if it cannot be."""
    what: str
    """Its class and message."""
    text: str
    """Where it was raised, and the traceback there."""

    @classmethod
    def of(cls, error: BaseException, where: str) -> Raised:
        """Return ``error`` with its traceback; ``where`` names the side that raised it."""
        try:
            data = pickle.dumps(error)
            pickle.loads(data)  # noqa: S301  our own bytes
        except Exception:  # an exception may hold anything, e.g. a lock
            data = b""
        lines = traceback.format_exception(type(error), error, error.__traceback__)
        what = public_text(f"{type(error).__name__}: {error}")
        return cls(data, what, f"{where}\n{public_text(''.join(lines))}")

    def reraise(self) -> NoReturn:
        """Raise the exception as itself, with the traceback of the other side as its cause.

        Raises
        ------
        WorkerDied
            The exception cannot be pickled, or it is one that ends a process.
        """
        error = pickle.loads(self.error) if self.error else None  # noqa: S301  the server's own
        if not isinstance(error, Exception):
            error = WorkerDied(
                f"the side that answers raised {self.what}",
                do="Its traceback is the cause of this error (__cause__).",
            )
        raise error from WorkerTraceback(self.text)
