"""Whether voxels may be read now: estimates are made of what is known already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..core.origin import is_looking_ahead, looking_ahead


@contextmanager
def without_reading() -> Iterator[None]:
    """Let plans be estimated: where no mask is at hand, :func:`sampling_mask` returns None."""
    with looking_ahead():
        yield


def may_read() -> bool:
    """Whether plans may ask for voxels now; not while they are only estimated."""
    return not is_looking_ahead()
