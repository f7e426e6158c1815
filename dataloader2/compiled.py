"""What a loader makes of a chain before it runs: rewritten by adapters, checked, distributed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..adapters import Adapter
from ..graph import Change, Pipe, clone, verify
from ..reading_services import ReadingService
from ..reading_services.work import Work
from .behind import Tail, detached
from .listed import AdapterLike


@dataclass(frozen=True)
class Compiled:
    """A chain that is ready to run."""

    adapters: tuple[AdapterLike, ...]
    """What rewrote it, in this order."""
    whole: Pipe
    """The chain as it runs."""
    graph: Pipe
    """What of it the service runs."""
    tail: Tail
    """What of it stays in this process, behind that."""
    changes: tuple[Change, ...]
    """What the adapters did and refused."""
    work: Work
    """What of it runs where."""


def compiled(written: Pipe, adapters: Sequence[AdapterLike], service: ReadingService) -> Compiled:
    """Rewrite a copy of a verified chain, check it after each adapter, and distribute it.

    Raises
    ------
    GraphError, NotPicklable
        It cannot run like that.
    """
    graph = clone(written)
    changes: list[Change] = []
    for adapter in adapters:
        if isinstance(adapter, Adapter):
            rewritten = adapter.rewrite(graph)
            changes += rewritten.changes
            graph = verify(rewritten.after)
        else:
            graph = verify(adapter(graph))
    body, tail = detached(graph, service)
    return Compiled(tuple(adapters), graph, body, tail, tuple(changes), service.distribute(body))
