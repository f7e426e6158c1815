"""How far apart ranges may lie to be read as one: what a read scheme says, where reads look for it.

Schemes are agreed on per key. Whoever realizes patches lays out the table of all keys, and says
of which key the next reads are; a read without either goes by the store's own figures.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

KIB, MIB = 1024, 1024**2
# Ranges closer than this are read as one, up to the longest run: what the kernel reads ahead, and
# one round trip at 100 MB/s (zarr-python 3.3 has 1 and 16 MiB too).
LOCAL_GAP, LOCAL_RUN = 64 * KIB, 4 * MIB
REMOTE_GAP, REMOTE_RUN = MIB, 16 * MIB
# What a file server over 10 Gb/s sends in one round trip is worth the gap.
NETWORK_GAP, NETWORK_RUN = 512 * KIB, 16 * MIB


class Joining(NamedTuple):
    """When neighbouring ranges become one request. It changes requests, never voxels."""

    gap: int
    """Bytes between two ranges that are worth reading for nothing."""
    longest: int
    """Most bytes of one request; a range that is longer alone stays whole."""


Table = Mapping[str, Joining]
_TABLE: ContextVar[Table | None] = ContextVar("joinings", default=None)
_KEY: ContextVar[str | None] = ContextVar("key", default=None)


@contextmanager
def using_joinings(table: Table) -> Iterator[None]:
    """Let the reads of each key go by ``table`` inside the ``with`` block."""
    token = _TABLE.set(table)
    try:
        yield
    finally:
        _TABLE.reset(token)


@contextmanager
def reads_of(key: str) -> Iterator[None]:
    """Say that the reads inside the ``with`` block are those of one key of a sample."""
    token = _KEY.set(key)
    try:
        yield
    finally:
        _KEY.reset(token)


def joining(usual: Joining) -> Joining:
    """Return what holds for a read that begins now, by default ``usual``.

    Examples
    --------
    >>> with using_joinings({"image": Joining(0, 100)}):
    ...     with reads_of("image"):
    ...         image = joining(Joining(64, 1000))
    ...     image, joining(Joining(64, 1000))
    (Joining(gap=0, longest=100), Joining(gap=64, longest=1000))
    """
    table, key = _TABLE.get(), _KEY.get()
    if table is None or key is None:
        return usual
    return table.get(key, usual)
