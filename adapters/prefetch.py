"""Make batches before they are asked for."""

from __future__ import annotations

from ..core.validate import validate_int
from ..datapipes.iter import Prefetcher
from ..datapipes.tensors import BUFFER_BYTES
from ..graph import Change, Pipe, RewriteResult, chained_name, describe, parents_of, walk
from ..graph.rewrite import insert_after
from .adapter import Adapter

BATCHES = 2


class Prefetch(Adapter):
    """Put ``prefetch()`` at the end of the chain, or after a pipe, bounded in items and bytes.

    Without workers a thread then makes batches while you use the one before. Workers make batches
    ahead anyway (``worker_prefetch_cnt``, ``main_prefetch_cnt``, ``prefetch_bytes``); behind the
    cut the pipe adds nothing there. The batches stay the same.

    Parameters
    ----------
    items
        Items that may wait.
    bytes
        Bytes that they may take; a single one may take more.
    after
        Chained name of the pipe after which it stands; by default the last one. Every pipe of that
        name gets one.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> chain = Prefetch(4)(IterableWrapper(range(3)))
    >>> chain.buffer_size, list(chain)
    (4, [0, 1, 2])
    """

    def __init__(
        self, items: int = BATCHES, *, bytes: int = BUFFER_BYTES, after: str | None = None
    ) -> None:
        self.items = validate_int("items", items, least=1)
        self.bytes = validate_int("bytes", bytes, least=1, unit="bytes")
        self.after = after

    def rewrite(self, pipe: Pipe) -> RewriteResult:
        if self.after is None:
            places = [pipe]
        else:
            places = [p for p in walk(pipe) if chained_name(p) == self.after]
            if not places:
                names = dict.fromkeys(chained_name(p) for p in walk(pipe))
                raise ValueError(f"there is no {self.after}() in the graph: {', '.join(names)}")
        sink, changes = pipe, []
        # From the end: what is put in upstream copies all that reads it.
        for place in reversed(places):
            readers = [p for p in walk(pipe) if any(q is place for q in parents_of(p))]
            if any(isinstance(p, Prefetcher) for p in (place, *readers)):
                changes.append(Change("prefetch", describe(place), reason="it prefetches already"))
                continue
            sink = insert_after(sink, place, self._prefetch)
            changes.append(Change("prefetch", describe(place), became=f"prefetch({self.items})"))
        return RewriteResult(pipe, sink, tuple(changes))

    def _prefetch(self, parent: Pipe) -> Pipe:
        return Prefetcher(parent, self.items, buffer_bytes=self.bytes)

    def __repr__(self) -> str:
        after = "" if self.after is None else f", after={self.after!r}"
        return f"Prefetch({self.items}, bytes={self.bytes}{after})"
