"""How much memory reading may take, where nobody says it: a budget from facts of the machine."""

from __future__ import annotations

from operator import index

from ..volumes.cache_directory import cache_budget
from ..volumes.scheme import Budget
from .transport.budget import memory_bytes

# The model, its optimizer and the kernel's cache of files want the rest. Shared memory for
# batches, an eighth of the memory by default, is part of it.
MEMORY_FRACTION = 4


def checked(given: int | None) -> int | None:
    """Return ``memory_bytes`` as it was given to a service, or raise ``ValueError``."""
    if given is not None and index(given) < 1:
        msg = f"memory_bytes is 1 or more, or None, got {given}"
        raise ValueError(msg)
    return given


def budgets(
    given: int | None, *, workers: int, batches_ahead: int, threads: int
) -> tuple[Budget, ...]:
    """Return the budgets to try, one after another.

    What the user says is the only one. Else a quarter of the memory, and then all of it: a
    default must not refuse what would have worked.
    """
    sizes = (given,) if given is not None else (memory_bytes() // MEMORY_FRACTION, memory_bytes())
    return tuple(
        Budget(
            size,
            workers=workers,
            batches_ahead=batches_ahead,
            threads=threads,
            spool_bytes=cache_budget(),
        )
        for size in sizes
    )
