"""What a worker is sent at its start: what it runs, and what was registered here."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from ...batching import ApplyValue, Job
from ...core.call_site import shorten
from ...core.errors import NotPicklable
from ...graph import Pipe, describe, is_pipe, origin_of, walk
from ...intensity import ValueStep
from ...volumes import custom_backends, custom_decoders
from ..work import Planned, Work
from ..work.hooks import Hooks
from ..work.pipe_runner import Replica
from .own_script import MOVE, SIGN, cannot_follow, why_not


def payload_of(
    work: Work, worker: int, workers: int, script: Mapping[str, str] | None = None
) -> bytes:
    """Return what worker number ``worker`` of ``workers`` runs, pickled.

    Parameters
    ----------
    work, worker, workers
        What runs, and whose share it is.
    script
        What workers are told of the script, where they have to import it.

    Raises
    ------
    NotPicklable
        With the pipe or backend that cannot travel, as the user wrote it.
    """
    if isinstance(work, Planned):
        thing: Any = work.maker()
        pipes = work.cut.realizing
        planned = {pipe: _value_ops(pipe) for pipe in walk(work.cut.planner)}
    else:
        graph = work.of_worker()
        thing = Replica(graph, work.share(worker, workers), work.hooks)
        pipes = tuple(walk(graph))
        planned = {}
    # Value ops that are planned travel with the samples, of which there are none yet.
    for pipe, ops in planned.items():
        _refuse_ops(pipe, ops, script)
    whole = (custom_backends(), custom_decoders(), thing)
    try:
        data = pickle.dumps(whole)
    except Exception as error:  # whatever a user's object raises from its __reduce__
        hooks = Hooks() if isinstance(work, Planned) else work.hooks
        raise _not_picklable(pipes, hooks, error) from error
    if script is not None:
        own = cannot_follow(whole, data, script)
        if own is not None:
            raise _nowhere_to_import(pipes, own, script)
    return data


def _value_ops(pipe: Pipe) -> list[Any]:
    ops = (getattr(pipe, "step", None), getattr(pipe, "change", None))
    return [op for op in ops if isinstance(op, (ValueStep, ApplyValue))]


def _refuse_ops(pipe: Pipe, ops: Sequence[Any], script: Mapping[str, str] | None) -> None:
    """Raise ``NotPicklable`` where a value op of a pipe cannot travel, or cannot be imported."""
    cause = _refusal(ops) if ops else None
    if cause is not None:
        msg = f"{describe(pipe)} cannot travel to a worker: {cause}"
        raise NotPicklable(msg, do=MOVE).at(origin_of(pipe)) from cause
    if ops and script is not None:
        own = cannot_follow(ops, SIGN, script)
        if own is not None:
            raise _nowhere_to_import((pipe,), own, script)


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
        cases = (job.cases() or job.place()) if isinstance(job, Job) else job
        msg = f"the samples of {cases} cannot travel to a worker: {error}"
        do = "Put only plain data into samples before batch_patches(), or use num_workers=0."
        raise NotPicklable(msg, do=do) from error


def _not_picklable(pipes: tuple[Pipe, ...], hooks: Hooks, error: Exception) -> NotPicklable:
    for which in (Hooks(init=hooks.init), Hooks(reset=hooks.reset)):
        cause = _refusal(which)
        if cause is not None:
            return NotPicklable(f"{which.names()} cannot travel to a worker: {cause}", do=MOVE)
    for name, *functions in custom_backends():
        cause = _refusal(functions)
        if cause is not None:
            return NotPicklable(f"backend {name!r} cannot travel to a worker: {cause}", do=MOVE)
    for name, factory in custom_decoders():
        cause = _refusal(factory)
        if cause is not None:
            return NotPicklable(f"decoder {name!r} cannot travel to a worker: {cause}", do=MOVE)
    for pipe in pipes:
        cause = _refusal({k: v for k, v in vars(pipe).items() if not is_pipe(v)})
        if cause is not None:
            found = NotPicklable(f"{describe(pipe)} cannot travel to a worker: {cause}", do=MOVE)
            found.at(origin_of(pipe))
            return found
    return NotPicklable(f"the graph cannot travel to a worker: {error}", do=MOVE)


def _nowhere_to_import(
    pipes: tuple[Pipe, ...], own: Any, script: Mapping[str, str]
) -> NotPicklable:
    name = getattr(own, "__qualname__", shorten(own))
    for pipe in pipes:
        settings = {k: v for k, v in vars(pipe).items() if not is_pipe(v)}
        if cannot_follow(settings, SIGN, script) is own or type(pipe) is own:
            what = f"{describe(pipe)} cannot travel to a worker"
            break
    else:
        pipe, what = None, f"{name} cannot travel to a worker"
    why, do = why_not(own, script)
    refused = NotPicklable(f"{what}: workers cannot import {name}, which {why}", do=do)
    refused.at(origin_of(pipe) if pipe is not None else None)
    return refused


def _refusal(thing: Any) -> Exception | None:
    """Return why ``thing`` cannot be pickled."""
    try:
        pickle.dumps(thing)
    except Exception as cause:  # as above
        return cause
    return None
