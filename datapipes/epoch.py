"""Tell every random pipe of a graph which epoch comes."""

from __future__ import annotations

from typing import Any

from ..core import Stream
from ..graph import Pipe, walk
from .datapipe import DataPipe


def set_epoch(graph: Pipe, seed: int, epoch: int) -> None:
    """Tell every random pipe of ``graph`` which epoch comes; the same on every worker.

    Sources of samples take (seed, epoch) and their number among the sources. Any other pipe
    with ``set_seed``, torch's or ours, takes one integer, drawn from the stream of its class and
    its place among its kind; one with ``set_epoch`` takes the epoch, as samplers of torch do.
    """
    seen: dict[str, int] = {}
    sources = 0
    every: Any = walk(graph)  # foreign pipes have what their classes say
    for pipe in every:
        kind = type(pipe)
        if isinstance(pipe, DataPipe) and hasattr(kind, "begin"):
            pipe.begin(seed, epoch, sources)
            sources += 1
            continue
        if hasattr(kind, "set_epoch"):
            pipe.set_epoch(epoch)
        if hasattr(kind, "set_seed"):
            place = seen[kind.__name__] = seen.get(kind.__name__, -1) + 1
            pipe.set_seed(Stream(seed, epoch, (place,), kind.__name__).integer())


def seed_again(graph: Pipe, seed: int) -> None:
    """Seed every random pipe of ``graph`` for one more pass within the same epoch.

    Sources keep their number, so identities stay those of the cases; the draws are others.
    """
    seen: dict[str, int] = {}
    every: Any = walk(graph)
    for pipe in every:
        kind = type(pipe)
        if isinstance(pipe, DataPipe) and hasattr(kind, "begin"):
            pipe.set_seed(seed)
        elif hasattr(kind, "set_seed"):
            place = seen[kind.__name__] = seen.get(kind.__name__, -1) + 1
            pipe.set_seed(Stream(seed, 0, (place,), kind.__name__).integer())
