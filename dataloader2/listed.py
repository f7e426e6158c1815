"""What the user gives a loader, brought into one form: chains and adapters."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from torch.utils.data import MapDataPipe

from ..graph import Pipe

AdapterLike: TypeAlias = "Callable[[Pipe], Pipe]"
"""What rewrites a graph."""


def iterable(datapipe: Any) -> Pipe:
    """Return a chain; a map-style one in the order of its indices, as torchdata does.

    Examples
    --------
    >>> from torch.utils.data.datapipes.map import SequenceWrapper
    >>> list(iterable(SequenceWrapper("ab")))
    ['a', 'b']
    """
    pipe: Pipe = datapipe.to_iter_datapipe() if isinstance(datapipe, MapDataPipe) else datapipe
    return pipe


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
    if not callable(given) and not isinstance(given, Iterable):
        msg = f"adapters come second, one or a list; got {type(given).__name__}"
        raise TypeError(f"{msg}. A reading service is the third argument: reading_service=.")
    listed = [given] if callable(given) and not isinstance(given, type) else list(given)
    for adapter in listed:
        if isinstance(adapter, type):
            msg = f"an adapter is an object: write {adapter.__name__}() instead of the class"
            raise TypeError(msg)
    return listed
