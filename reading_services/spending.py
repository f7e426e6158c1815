"""How much memory reading may take, where nobody says it: a budget from facts of the machine."""

from __future__ import annotations

from ..core.validate import validate_int
from ..storage.disk_cache import cache_budget
from ..volumes.scheme import Budget
from .transport.budget import memory_bytes

# The model, its optimizer and the kernel's cache of files want the rest. Shared memory for
# batches, an eighth of the memory by default, is part of it.
MEMORY_FRACTION = 4
# Enough for batches of four patches of 96^3 and the chunks that they share. Keeping whole data
# sets in memory is for those who say how much of it: it multiplies what a loader takes.
USUAL_BYTES = 256 * 1024**2


def checked(given: int | None) -> int | None:
    """Return ``memory_bytes`` as it was given to a service, or raise if it is no count of bytes."""
    if given is None:
        return None
    return validate_int("memory_bytes", given, least=1, unit="bytes", do="or None for the default")


def budgets(
    given: int | None, *, workers: int, batches_ahead: int, threads: int
) -> tuple[Budget, ...]:
    """Return the budgets to try, one after another.

    What the user says is the only one, and is spent. Else little, then a quarter of the memory,
    and then all of it: a default must not refuse what would have worked. It keeps only what
    patches of one visit share: each process would keep the rest anew, to save little decoding.
    """
    quarter = memory_bytes() // MEMORY_FRACTION
    usual = (min(USUAL_BYTES, quarter), quarter, memory_bytes())
    sizes = (given,) if given is not None else usual
    return tuple(
        Budget(
            size,
            workers=workers,
            batches_ahead=batches_ahead,
            threads=threads,
            spool_bytes=cache_budget(),
            thrifty=given is None,
        )
        for size in sizes
    )
