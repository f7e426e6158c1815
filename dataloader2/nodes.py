"""Chains as nodes of ``torchdata.nodes``, and nodes as sources of chains."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

from torchdata.nodes import BaseNode

from ..datapipes import DataPipe
from ..graph import Pipe
from ..reading_services import ReadingService
from .compiler import AdapterLike
from .dataloader2 import DataLoader2


class PipeNode(BaseNode[Any]):  # type: ignore[misc]  # torchdata ships no types
    """A node that yields what a chain yields; what :func:`to_node` returns."""

    def __init__(self, loader: DataLoader2) -> None:
        super().__init__()
        self.loader = loader
        self._batches: Iterator[Any] | None = None
        # Nodes that make ahead ask from a thread of theirs, which may outlive them a little.
        self._turn = threading.Lock()

    def reset(self, initial_state: dict[str, Any] | None = None) -> None:
        """Begin the next epoch, or go on where ``initial_state`` was taken."""
        super().reset(initial_state)
        with self._turn:
            if initial_state is not None:
                self.loader.load_state_dict(initial_state)
            self._batches = iter(self.loader)

    def next(self) -> Any:
        """Return the next item."""
        with self._turn:
            assert self._batches is not None  # reset() comes first
            return next(self._batches)

    def get_state(self) -> dict[str, Any]:
        """Return the place in the epoch, as plain data."""
        with self._turn:
            return self.loader.state_dict()

    def shutdown(self) -> None:
        """Stop what the loader has started, after the item that is being made."""
        with self._turn:
            self.loader.shutdown()


def to_node(
    datapipe: Pipe,
    datapipe_adapter_fn: AdapterLike | Iterable[AdapterLike] | None = None,
    reading_service: ReadingService | None = None,
    *,
    seed: int | None = None,
) -> PipeNode:
    """Return a chain as a source of ``torchdata.nodes``.

    Its state is that of a :class:`DataLoader2`: a few numbers, exact in the middle of an epoch. The
    parameters are those of :class:`DataLoader2`.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> from torchdata.nodes import Batcher, Loader
    >>> loader = Loader(Batcher(to_node(IterableWrapper(range(5))), 2, drop_last=False))
    >>> list(loader)
    [[0, 1], [2, 3], [4]]
    """
    return PipeNode(DataLoader2(datapipe, datapipe_adapter_fn, reading_service, seed=seed))


class FromNode(DataPipe):
    """Yield what a node yields; what :func:`from_node` returns."""

    def __init__(self, node: BaseNode[Any]) -> None:
        super().__init__()
        self.node = node

    def __iter__(self) -> Iterator[Any]:
        """Reset the node and yield its items."""
        self.node.reset()
        yield from self.node

    def settings(self) -> Any:
        """Return the class of the node: its settings are its own."""
        return type(self.node).__name__


def from_node(node: BaseNode[Any]) -> FromNode:
    """Return a node of ``torchdata.nodes`` as the source of a chain.

    Every pass resets the node. It stays in the process of the loader. After a resume its items are
    taken again and dropped, because only the node could skip them: a chain in the middle of nodes
    is better off as :func:`to_node`, with the node's own state.

    Examples
    --------
    >>> from torchdata.nodes import IterableWrapper
    >>> list(from_node(IterableWrapper([1, 2])).map(str))
    ['1', '2']
    """
    if not isinstance(node, BaseNode):
        raise TypeError(f"a node of torchdata.nodes expected, got {type(node).__name__}")
    return FromNode(node)
