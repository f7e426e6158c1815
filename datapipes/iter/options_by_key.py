"""Options of ``open_volume`` that may differ between the volumes of a sample."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BY_KEY = ("affine", "dataset", "level", "series")
"""Options of which a mapping is one value per key: none of them is a mapping itself."""


def named_by_key(options: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return which keys the options name that are given by key.

    Examples
    --------
    >>> named_by_key({"level": {"image": 1}, "series": 2})
    {'level': ('image',)}
    """
    return {name: tuple(given) for name, given in options.items() if _is_by_key(name, given)}


def options_of(key: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options for one volume: those for all, and its own.

    Examples
    --------
    >>> options = {"level": {"image": 1}, "series": 2}
    >>> options_of("image", options), options_of("label", options)
    ({'series': 2, 'level': 1}, {'series': 2})
    """
    shared = {name: given for name, given in options.items() if not _is_by_key(name, given)}
    own = {
        name: given[key]
        for name, given in options.items()
        if _is_by_key(name, given) and key in given
    }
    return {**shared, **own}


def _is_by_key(name: str, given: Any) -> bool:
    return name in BY_KEY and isinstance(given, Mapping)
