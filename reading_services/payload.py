"""What a worker is sent at its start: what it runs, and the backends registered here."""

from __future__ import annotations

import pickle
from typing import Any

from ..core.errors import NotPicklable
from ..graph import Pipe, describe, is_pipe, origin_of, walk
from ..volumes import custom_backends, register_backend
from .realizer import Realizer
from .replica import Replica
from .work import Planned, Work


def payload_of(work: Work, worker: int, workers: int) -> bytes:
    """Return what worker number ``worker`` of ``workers`` runs, pickled.

    Raises
    ------
    NotPicklable
        With the pipe or backend that cannot travel, as the user wrote it.
    """
    if isinstance(work, Planned):
        thing: Any = Realizer(work.cut)
        pipes = work.cut.realizing
    else:
        thing = Replica(work.graph, worker, workers, shards=work.shards)
        pipes = tuple(walk(work.graph))
    try:
        return pickle.dumps((custom_backends(), thing))
    except Exception as error:  # whatever a user's object raises from its __reduce__
        raise _not_picklable(pipes, error) from error


def opened(payload: bytes) -> Any:
    """Return what a worker runs, with the backends of its parent registered."""
    backends, thing = pickle.loads(payload)
    for name, matcher, factory in reversed(backends):
        register_backend(name, matcher, factory)
    return thing


def _not_picklable(pipes: tuple[Pipe, ...], error: Exception) -> NotPicklable:
    do = "Define the function at the top of a module (no lambda), or use num_workers=0."
    for name, *functions in custom_backends():
        cause = _refusal(functions)
        if cause is not None:
            return NotPicklable(f"backend {name!r} cannot travel to a worker: {cause}", do=do)
    for pipe in pipes:
        cause = _refusal({k: v for k, v in vars(pipe).items() if not is_pipe(v)})
        if cause is not None:
            found = NotPicklable(f"{describe(pipe)} cannot travel to a worker: {cause}", do=do)
            found.at(origin_of(pipe))
            return found
    return NotPicklable(f"the graph cannot travel to a worker: {error}", do=do)


def _refusal(thing: Any) -> Exception | None:
    """Return why ``thing`` cannot be pickled."""
    try:
        pickle.dumps(thing)
    except Exception as cause:  # as above
        return cause
    return None
