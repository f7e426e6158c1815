"""Copies of a loader's graph and service that can run beside it without disturbing it."""

from __future__ import annotations

import copy
from collections.abc import Iterator

from ..core.errors import GraphError
from ..datapipes.epoch import may_look_ahead
from ..graph import Pipe, describe, parents_of, walk
from ..reading_services import ReadingService


def twin_of(service: ReadingService) -> ReadingService:
    """Return a service of its own, whose workers stay from one measurement to the next.

    Of ranks it is this one: the others need not measure at the same time.
    """
    alone = getattr(service, "alone", None)
    twin: ReadingService = copy.copy(service) if alone is None else alone()
    if hasattr(twin, "persistent_workers"):
        twin.persistent_workers = True
    return twin


def check_source(planner: Pipe, *, running: bool) -> None:
    """Refuse a source that planning ahead would use up or disturb."""
    for pipe in walk(planner):
        if not parents_of(pipe) and any(isinstance(v, Iterator) for v in vars(pipe).values()):
            raise GraphError(
                f"{describe(pipe)} reads from an iterator, which planning ahead would use up",
                do="Give it a list, or something that can be iterated again.",
            )
    if running and not may_look_ahead(planner):
        raise GraphError(
            "an epoch is running, and functions or pipes of yours in the planner cannot run twice "
            "at a time",
            do="Call diagnose() before the loop or after it.",
        )
