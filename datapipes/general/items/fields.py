"""Tuples, lists, mappings and samples, taken apart and put together again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ....core import Sample


def positions(item: Any) -> dict[Any, Any] | None:
    """Return what an item holds by index or key; None if it is no tuple, list or mapping.

    Examples
    --------
    >>> positions((5, 6)), positions({"a": 1}), positions("ab")
    ({0: 5, 1: 6}, {'a': 1}, None)
    """
    if isinstance(item, (tuple, list)):
        return dict(enumerate(item))
    return dict(item) if isinstance(item, Mapping) else None


def rebuilt(item: Any, fields: dict[Any, Any]) -> Any:
    """Return an item of the kind of ``item`` that holds other things; the item itself stays.

    Examples
    --------
    >>> rebuilt((5, 6), {1: 6}), rebuilt([5, 6], {0: 5})
    ((6,), [5])
    """
    if isinstance(item, Sample):
        return item.replace(data=fields)
    if isinstance(item, Mapping):
        return fields
    return tuple(fields.values()) if isinstance(item, tuple) else list(fields.values())


def from_the_beginning(item: Any, indices: Iterable[Any]) -> set[Any]:
    """Return the indices of a tuple or list, negative ones counted from its beginning.

    Examples
    --------
    >>> sorted(from_the_beginning("abc", [0, -1]))
    [0, 2]
    """
    return {i + len(item) if isinstance(i, int) and i < 0 else i for i in indices}


def lacks(item: Any, index: Any) -> bool:
    """Whether an item has nothing at an index or key."""
    try:
        item[index]
    except (IndexError, KeyError):
        return True
    return False
