"""Compile a chain for a loader: rewrite it by adapters, check it, distribute it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..adapters import Adapter, Lint
from ..core.call_site import shorten, warn
from ..core.errors import GraphError, LintWarning
from ..graph import Change, Pipe, clone, is_pipe, verify
from ..reading_services import ReadingService
from ..reading_services.work import Work
from .arguments import AdapterLike
from .main_process_tail import MainProcessTail, detach_tail
from .state import changes_of_order


@dataclass(frozen=True)
class CompiledChain:
    """A chain that is ready to run."""

    adapters: tuple[AdapterLike, ...]
    """What rewrote it, in this order."""
    whole: Pipe
    """The chain as it runs."""
    graph: Pipe
    """What of it the service runs."""
    tail: MainProcessTail
    """What of it stays in this process, behind that."""
    changes: tuple[Change, ...]
    """What the adapters did and refused."""
    work: Work
    """What of it runs where."""
    order: str
    """What the adapters changed of the order in which items come; empty if nothing."""


def compile_chain(
    written: Pipe, adapters: Sequence[AdapterLike], service: ReadingService
) -> CompiledChain:
    """Rewrite a copy of a verified chain, check it after each adapter, and distribute it."""
    graph = clone(written)
    changes: list[Change] = []
    for adapter in adapters:
        if isinstance(adapter, Adapter) and type(adapter).__call__ is Adapter.__call__:
            rewritten = adapter.rewrite(graph)
            changes += rewritten.changes
            graph = _verified(adapter, rewritten.after)
        else:  # a function, or a subclass in torchdata's form
            graph = _verified(adapter, adapter(graph))
    body, tail = detach_tail(graph, service)
    work, order = service.distribute(body), changes_of_order(written, graph)
    for adapter in adapters:
        if isinstance(adapter, Lint):
            mistake = adapter.mistake_of_workers(body, getattr(work, "workers", 0))
            if mistake is not None:
                warn(str(mistake), LintWarning)
    return CompiledChain(tuple(adapters), graph, body, tail, tuple(changes), work, order)


def _verified(adapter: AdapterLike, graph: Any) -> Pipe:
    """Return what an adapter made of a graph, checked."""
    if not is_pipe(graph):
        raise GraphError(
            f"the adapter {shorten(adapter)} returned {shorten(graph)}, and not a datapipe",
            do="An adapter returns the graph that is to run, the one that it was given if it has "
            "nothing to do.",
        )
    return verify(graph)
