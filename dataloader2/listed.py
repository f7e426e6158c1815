"""What the user gives a loader, brought into one form: chains and adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from torch.utils.data import MapDataPipe

from ..core.call_site import shorten
from ..core.errors import GraphError
from ..graph import Pipe, is_pipe

AdapterLike: TypeAlias = "Callable[[Pipe], Pipe]"
"""What rewrites a graph."""


def iterable(datapipe: Any) -> Pipe:
    """Return a chain; a map-style one in the order of its indices, as torchdata does.

    Raises
    ------
    GraphError
        It is no chain; the message says what to write.

    Examples
    --------
    >>> from torch.utils.data.datapipes.map import SequenceWrapper
    >>> list(iterable(SequenceWrapper("ab")))
    ['a', 'b']
    """
    if isinstance(datapipe, MapDataPipe):
        pipe: Pipe = datapipe.to_iter_datapipe()
        return pipe
    if not is_pipe(datapipe):
        msg = f"DataLoader2 takes the last pipe of a chain first, got {shorten(datapipe)}"
        raise GraphError(msg, do=_meant(datapipe))
    return datapipe  # type: ignore[no-any-return]


def _meant(thing: Any) -> str:
    """Return what to write in the place of something that is no pipe."""
    if isinstance(thing, type):
        return f"Give a pipe, and not its class: {thing.__name__}(...)."
    if callable(getattr(thing, "distribute", None)) or hasattr(thing, "initialize"):
        return "That is a reading service: give it as reading_service=, after the chain."
    if isinstance(thing, Iterable) or hasattr(thing, "__getitem__"):
        return "Wrap it: IterableWrapper(...) of voxpipe.datapipes.iter."
    return "Begin a chain with list_cases(), from_cases() or IterableWrapper()."


def listed(adapters: AdapterLike | Iterable[AdapterLike] | None) -> list[AdapterLike]:
    """Return the adapters as a list.

    Raises
    ------
    TypeError
        They are no adapters.
    """
    if adapters is None:
        return []
    given: Any = adapters
    if isinstance(given, str):
        msg = f"an adapter is an object, got its name {given!r}"
        raise TypeError(f"{msg}. See voxpipe.adapters for those that there are.")
    if not callable(given) and not isinstance(given, Iterable):
        msg = f"adapters come second, one or a list; got {type(given).__name__}"
        raise TypeError(f"{msg}. A reading service is the third argument: reading_service=.")
    listed = [given] if callable(given) and not isinstance(given, type) else list(given)
    for adapter in listed:
        if isinstance(adapter, type):
            msg = f"an adapter is an object: write {adapter.__name__}() instead of the class"
            raise TypeError(msg)
        if not callable(adapter):
            msg = f"an adapter is called with the graph and returns one, got {shorten(adapter)}"
            raise TypeError(f"{msg}. See voxpipe.adapters for those that there are.")
    return listed
