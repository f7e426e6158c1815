"""Tell every random pipe of a graph which epoch comes."""

from __future__ import annotations

from typing import Any

from ..core import Stream
from ..graph import Pipe, walk
from .datapipe import DataPipe


def set_epoch(graph: Pipe, seed: int, epoch: int) -> None:
    """Tell every random pipe of ``graph`` which epoch comes; the same on every worker.

    voxpipe's own take (seed, epoch) and their number among the sources. A foreign pipe with
    ``set_seed`` takes one integer, drawn from the stream of its class and its place among
    its kind; one with ``set_epoch`` takes the epoch, as samplers of torch do.
    """
    seen: dict[str, int] = {}
    sources = 0
    every: Any = walk(graph)  # foreign pipes have what their classes say
    for pipe in every:
        kind = type(pipe)
        if isinstance(pipe, DataPipe):
            if hasattr(pipe, "begin"):
                pipe.begin(seed, epoch, sources)
                sources += 1
            continue
        if hasattr(kind, "set_epoch"):
            pipe.set_epoch(epoch)
        if hasattr(kind, "set_seed"):
            place = seen[kind.__name__] = seen.get(kind.__name__, -1) + 1
            pipe.set_seed(Stream(seed, epoch, (place,), kind.__name__).integer())
