"""Tell every random pipe of a graph which epoch comes."""

from __future__ import annotations

from typing import Any

from ..core import Stream
from ..graph import Pipe, walk


def set_epoch(graph: Pipe, seed: int, epoch: int) -> None:
    """Tell every random pipe of ``graph`` which epoch comes; the same on every worker.

    voxpipe's own take (seed, epoch); foreign ones take one integer, drawn from the
    stream of their class and their place among its kind.
    """
    seen: dict[str, int] = {}
    every: Any = walk(graph)  # foreign pipes have what their classes say
    for pipe in every:
        kind = type(pipe)
        if hasattr(kind, "set_epoch"):
            pipe.set_epoch(seed, epoch)
        elif hasattr(kind, "set_seed"):
            place = seen[kind.__name__] = seen.get(kind.__name__, -1) + 1
            pipe.set_seed(Stream(seed, epoch, (place,), kind.__name__).integer())
