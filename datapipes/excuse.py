"""Cases that cannot be planned are left out where somebody keeps a list of them.

Nobody does unless the user asked for it (``OnError``): then an error is an error.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..core.errors import placed
from ..core.sample import case_of
from ..realizing import Failure
from ..realizing.failing import failure_of

if TYPE_CHECKING:
    from .datapipe import DataPipe

UNPLANNED = -1
"""In place of the position in a batch."""


@dataclass(frozen=True)
class Excuses:
    """Which errors are excused, and what was."""

    errors: tuple[type[Exception], ...]
    noted: list[Failure] = field(default_factory=list)


_EXCUSES: ContextVar[Excuses | None] = ContextVar("excuses", default=None)


@contextlib.contextmanager
def excusing(excuses: Excuses) -> Iterator[None]:
    """Leave out what cannot be planned inside the ``with`` block, and note it."""
    token = _EXCUSES.set(excuses)
    try:
        yield
    finally:
        _EXCUSES.reset(token)


def excused(pipe: DataPipe, item: Any, error: Exception) -> bool:
    """Whether ``pipe`` may leave out ``item``, which failed; if so it is noted."""
    excuses = _EXCUSES.get()
    if excuses is None or not isinstance(error, excuses.errors):
        return False
    told = placed(error, pipe.origin, case_of(item))
    excuses.noted.append(failure_of(told, UNPLANNED, UNPLANNED, item))
    return True
