"""Tables that say where patches lie: kept in memory within bounds, and where they lie on disk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ...core.remembered import Remembered
from ...volumes.cache.cache_directory import cache_directory
from ...volumes.cache.waiting import made_once
from ...volumes.content import content_key, content_key_now
from ..estimating import may_read
from .weight_table import forget_decoded

T = TypeVar("T")

# Those of a thousand scans of 512 cubed, whose voxels would take 130 GB.
MOST_BYTES = 256 * 1024**2

KNOWN: Remembered[Any] = Remembered(
    MOST_BYTES, lambda table: 0 if table is None else int(table.nbytes)
)
"""Masks and weights by what they were made of; those asked for least lately go first."""


def forget_masks() -> None:
    """Drop the masks and weights that are kept in memory."""
    KNOWN.clear()
    forget_decoded()


def kept_table(
    volume: Any,
    key: Sequence[Any],
    load: Callable[[Path], T | None],
    make: Callable[[], T],
    save: Callable[[Path, T], None],
) -> T | None:
    """Return a table of a volume: as it lies on disk, or made by the first process that asks.

    Parameters
    ----------
    volume, key
        As of :func:`kept_file`.
    load, make, save
        As of :func:`~voxpipe.volumes.cache.waiting.made_once`.

    Returns
    -------
    The table. None where it is not at hand, and nothing shall be read now.
    """
    file = kept_file(volume, key)
    if not may_read():
        return None if file is None else load(file)
    content = volume.content_key
    return made_once(file, load, make, save, unchanged=lambda: content_key_now(volume) == content)


def kept_file(volume: Any, key: Sequence[Any]) -> Path | None:
    """Return where a table of a volume is kept, None if its content has no name.

    Parameters
    ----------
    volume
        What the table is made of.
    key
        The kind of table, its version, and what else it depends on.
    """
    content = volume.content_key
    if not content:
        return None
    # The grid may be one that the user gave beside the file, whose voxels then lie elsewhere.
    own = volume.grid
    name = content_key(content, (own.shape, own.rows, *key))
    return cache_directory() / "sampling" / f"{name}.npz"
