"""What a worker is sent at its start: what it runs, and what was registered here."""

from __future__ import annotations

import pickle
from typing import Any

from ..core.errors import NotPicklable
from ..graph import Pipe, describe, is_pipe, origin_of, walk
from ..realizing import Job
from ..volumes import custom_backends, custom_decoders
from .pipe_runner import PipeRunner, Replica
from .work import Planned, Work


def payload_of(work: Work, worker: int, workers: int) -> bytes:
    """Return what worker number ``worker`` of ``workers`` runs, pickled.

    Raises
    ------
    NotPicklable
        With the pipe or backend that cannot travel, as the user wrote it.
    """
    if isinstance(work, Planned):
        thing: Any = work.recipe or PipeRunner(work.cut)
        pipes = work.cut.realizing
    else:
        thing = Replica(work.graph, worker, workers, shards=work.shards)
        pipes = tuple(walk(work.graph))
    try:
        return pickle.dumps((custom_backends(), custom_decoders(), thing))
    except Exception as error:  # whatever a user's object raises from its __reduce__
        raise _not_picklable(pipes, error) from error


def pickled(job: Any) -> bytes:
    """Return one job, pickled.

    Raises
    ------
    NotPicklable
        With the cases, where a sample holds what cannot travel.
    """
    try:
        return pickle.dumps(job, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # whatever a user's object raises from its __reduce__
        cases = job.cases() if isinstance(job, Job) else job
        msg = f"the samples of {cases} cannot travel to a worker: {error}"
        do = "Put only plain data into samples before batch_patches(), or use num_workers=0."
        raise NotPicklable(msg, do=do) from error


def _not_picklable(pipes: tuple[Pipe, ...], error: Exception) -> NotPicklable:
    do = "Define the function at the top of a module (no lambda), or use num_workers=0."
    for name, *functions in custom_backends():
        cause = _refusal(functions)
        if cause is not None:
            return NotPicklable(f"backend {name!r} cannot travel to a worker: {cause}", do=do)
    for name, factory in custom_decoders():
        cause = _refusal(factory)
        if cause is not None:
            return NotPicklable(f"decoder {name!r} cannot travel to a worker: {cause}", do=do)
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
