"""Functions of the user's that prepare the graph of each worker, as torchdata has them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...core.call_site import shorten
from ...core.errors import GraphError
from ...graph import Pipe, is_pipe
from ..seeds.seed_generator import SeedGenerator


@dataclass(frozen=True)
class WorkerInfo:
    """Which worker of how many prepares its graph."""

    num_workers: int
    """Workers of this process's loader."""
    worker_id: int
    """This one, from 0."""


InitFunction = Callable[[Any, WorkerInfo], Any]
ResetFunction = Callable[[Any, WorkerInfo, SeedGenerator], Any]


@dataclass(frozen=True)
class Hooks:
    """What is called in each worker."""

    init: InitFunction | None = None
    """Once in the life of a worker, after its share was chosen."""
    reset: ResetFunction | None = None
    """Before every epoch."""

    def __bool__(self) -> bool:
        return self.init is not None or self.reset is not None

    def initialized(self, graph: Pipe, info: WorkerInfo) -> Pipe:
        """Return the graph as ``init`` left it."""
        if self.init is None:
            return graph
        return _called("worker_init_fn", self.init, info, graph, info)

    def prepared(self, graph: Pipe, info: WorkerInfo, seeds: SeedGenerator) -> Pipe:
        """Return the graph as ``reset`` left it."""
        if self.reset is None:
            return graph
        return _called("worker_reset_fn", self.reset, info, graph, info, seeds)

    def names(self) -> str:
        """Return which there are, for messages."""
        told = [("worker_init_fn", self.init), ("worker_reset_fn", self.reset)]
        return " and ".join(f"{name}={shorten(f)}" for name, f in told if f is not None)


NO_HOOKS = Hooks()
"""Where the user gave no function."""


def checked_hooks(init: Any, reset: Any) -> Hooks:
    """Return the functions; ``TypeError`` if one cannot be called."""
    for name, function in (("worker_init_fn", init), ("worker_reset_fn", reset)):
        if function is not None and not callable(function):
            msg = f"{name} is a function that returns the worker's datapipe, or None"
            raise TypeError(f"{msg}; got {shorten(function)}")
    return Hooks(init, reset)


def _called(name: str, function: Any, info: WorkerInfo, *arguments: Any) -> Pipe:
    try:
        made: Any = function(*arguments)
    except Exception as error:
        add_note = getattr(error, "add_note", None)
        if add_note is not None:
            add_note(f"in {name}={shorten(function)} of worker {info.worker_id}")
        raise
    if not is_pipe(made):
        raise GraphError(
            f"{name}={shorten(function)} returned {shorten(made)}, and not the datapipe that the "
            "worker is to run",
            do="Return the datapipe that it was given, or another one.",
        )
    pipe: Pipe = made
    return pipe
