"""Adapters that say where pipes run: threads, processes, and the device of the batches."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from ..core.errors import GraphError
from ..core.validate import validate_int
from ..datapipes.iter import BatchPatches, Realize
from ..datapipes.tensors import need_cuda
from ..graph import Change, Pipe, RewriteResult, chained_name, describe, origin_of, rebuild
from .adapter import Adapter, annotate, copy_with, note_of


@dataclasses.dataclass(frozen=True)
class RuntimeHints:
    """What a graph asks of whoever runs it; None leaves it to the reading service."""

    threads: int | None = None  # patches that each process realizes at once
    processes: int | None = None  # worker processes; 0 for none
    device: str | None = None  # where the tensors of batches end up


class Runtime(Adapter):
    """Say in the graph with what it runs; it goes before what the reading service was given.

    The batches stay the same; only where they are made changes, and on which device they arrive.

    ``processes`` is for services that have workers; a loader without one of them warns.

    Parameters
    ----------
    threads
        Patches that each process realizes at once.
    processes
        Workers of ``MultiProcessingReadingService``; 0 makes batches in this process.
    device
        Device to which this process moves the tensors of every batch, as ``to_device()`` does.
    at
        Chained name of a pipe to which ``threads`` is limited: ``realize`` or ``batch_patches``.

    Raises
    ------
    ValueError
        Nothing is asked for.
    NoDevice
        It is a CUDA device that is not there. This is a ``RuntimeError``.
    GraphError
        When the loader is made: there is no such pipe.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> note_of(Runtime(processes=2)(Runtime(threads=4)(IterableWrapper([1]))), RuntimeHints)
    RuntimeHints(threads=4, processes=2, device=None)
    """

    def __init__(
        self,
        *,
        threads: int | None = None,
        processes: int | None = None,
        device: Any = None,
        at: str | None = None,
    ) -> None:
        if at is not None and (threads is None or processes is not None or device is not None):
            raise ValueError("at= belongs to threads=; processes and device hold for the graph")
        if threads is None and processes is None and device is None:
            raise ValueError("Runtime() says nothing: give threads=, processes= or device=")
        where = None if device is None else torch.device(device)
        if where is not None and where.type == "cuda":
            do = "Leave device= out where there is no GPU."
            need_cuda(f"Runtime(device={str(where)!r})", where, do=do)
        self.at = at
        self.hints = RuntimeHints(
            None if threads is None else validate_int("threads", threads, least=1),
            None if processes is None else validate_int("processes", processes, least=0),
            None if where is None else str(where),
        )

    def rewrite(self, pipe: Pipe) -> RewriteResult:
        if self.at is not None:
            return self._with_threads(pipe)
        return annotate(pipe, dataclasses.replace(note_of(pipe, RuntimeHints), **self._settings()))

    def _settings(self) -> dict[str, Any]:
        return {k: v for k, v in dataclasses.asdict(self.hints).items() if v is not None}

    def _with_threads(self, sink: Pipe) -> RewriteResult:
        changes = []

        def with_threads(old: Pipe, new: Any) -> Pipe:
            if isinstance(new, (Realize, BatchPatches)) and chained_name(old) == self.at:
                new = copy_with(new, threads=self.hints.threads)
                became = f"{self.hints.threads} threads"
                changes.append(Change("runtime", describe(old), became=became))
            return new  # type: ignore[no-any-return]

        after = rebuild(sink, with_threads)
        if not changes:
            raise GraphError(
                f"Runtime(at={self.at!r}): threads are for realize and batch_patches, and there "
                "is no such pipe",
                do="Give the adapter after FuseSpatial, which may take realize() out.",
            ).at(origin_of(sink))
        return RewriteResult(sink, after, tuple(changes))

    def __repr__(self) -> str:
        settings = self._settings() | ({"at": self.at} if self.at is not None else {})
        return f"Runtime({', '.join(f'{k}={v!r}' for k, v in settings.items())})"
