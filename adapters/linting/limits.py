"""Mistakes about how much there is: of items, of memory, of failures."""

from __future__ import annotations

from typing import Any

from ...batching.job import RAISE
from ...core.memory import usable_memory
from ...datapipes.datapipe import length, without_opening
from ...graph import chained_name, describe, parents_of
from ..on_error import BUDGET, Excused
from .seen import Check, Seen, Told

# The model and the rest of the loader want memory too.
_PREFETCH_PART = 4


def _endless(pipe: Any, before: Seen) -> Told:
    if chained_name(pipe) != "cycle" or getattr(pipe, "count", 1) is not None:
        return None
    what = "cycle() without a count goes on for ever: no epoch ends, and len() is unknown"
    return what, "Give it a count, or leave it out: each iter() of the loader is the next epoch."


def _large_prefetch(pipe: Any, before: Seen) -> Told:
    size, memory = getattr(pipe, "buffer_bytes", 0), usable_memory()
    if chained_name(pipe) != "prefetch" or not memory or size <= memory // _PREFETCH_PART:
        return None
    what = f"up to {size / 2**30:.3g} GiB of {memory / 2**30:.3g} may wait to be taken"
    return what, "Give prefetch(buffer_bytes=...) less: two batches keep a loop busy."


def _wrong_length(pipe: Any, before: Seen) -> Told:
    # A share has another length than the whole, and it may be what was meant.
    if chained_name(pipe) != "set_length" or before.divided:
        return None
    try:
        with without_opening():
            count = length(parents_of(pipe)[0])
    except Exception:  # what has no length is what set_length() is for; iterating tells the rest
        return None
    if count == pipe.length:
        return None
    what = f"{describe(pipe)} says another length than that of what it yields, which is {count}"
    return what, "Leave it out, or put .header(n) in its place if there are to be fewer."


def _boundless_failures(pipe: Any, before: Seen) -> Told:
    if not isinstance(pipe, Excused) or pipe.note.action == RAISE or pipe.note.budget is not None:
        return None
    what = f"OnError({pipe.note.action!r}, budget=None) goes on when a disk is gone: with nothing"
    return what, f"Give a budget; without the argument it is {BUDGET} in an epoch."


CHECKS: dict[str, Check] = {
    "endless": _endless,
    "wrong-length": _wrong_length,
    "large-prefetch": _large_prefetch,
    "boundless-failures": _boundless_failures,
}
