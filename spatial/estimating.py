"""Whether voxels may be read now: estimates are made of what is known already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_MAY_READ: ContextVar[bool] = ContextVar("may_read", default=True)


@contextmanager
def without_reading() -> Iterator[None]:
    """Let plans be estimated: where no mask is at hand, :func:`sampling_mask` returns None."""
    token = _MAY_READ.set(False)
    try:
        yield
    finally:
        _MAY_READ.reset(token)


def may_read() -> bool:
    """Whether plans may ask for voxels now; not while they are only estimated."""
    return _MAY_READ.get()
