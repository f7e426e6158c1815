"""What workers tell of errors, raised here as what they are."""

from __future__ import annotations

import pickle
from typing import NoReturn

from ...core.errors import WorkerDied
from ..transport.messages import Failed


class WorkerTraceback(Exception):
    """The traceback of a worker, shown as the cause of the error that it raised."""

    def __str__(self) -> str:
        return f"\n\n{self.args[0]}"


def raise_from_worker(answer: Failed) -> NoReturn:
    """Raise a worker's error as itself, with the worker's traceback as its cause."""
    error = pickle.loads(answer.error) if answer.error else None
    if not isinstance(error, Exception):
        # It cannot be pickled; or it is SystemExit or KeyboardInterrupt, which would end
        # the consumer's process without a word.
        error = WorkerDied(
            f"a worker raised {answer.what}",
            do="The worker's traceback is the cause of this error (__cause__).",
        )
    try:
        raise error from WorkerTraceback(answer.text)
    finally:
        del error  # held by this frame, which its traceback holds, it would keep all frames alive
