"""Options of ``open_volume`` that may differ between the volumes of a sample."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

BY_KEY = ("affine", "dataset", "follow", "io", "level", "reader", "series")
"""Options of which a mapping is one value per key: none of them is a mapping itself."""
# That of one volume is a mapping already; of options by key, each value is one.
_STORAGE = "storage_options"


def named_by_key(
    options: Mapping[str, Any], keys: Collection[str] = ()
) -> dict[str, tuple[str, ...]]:
    """Return which keys the options name that are given by key.

    Parameters
    ----------
    options
        By name; those of :data:`BY_KEY`, ``storage_options``, and any that a backend or a reader
        of the user's own takes. Of the latter, a mapping is by key where it names a key.
    keys
        The volumes of a sample; none as long as no sample was seen.

    Examples
    --------
    >>> named_by_key({"level": {"image": 1}, "series": 2})
    {'level': ('image',)}
    >>> named_by_key({"window": {"image": 40}, "codec": {"name": "x"}}, ["image", "label"])
    {'window': ('image',)}
    """
    return {name: tuple(given) for name, given in options.items() if _is_by_key(name, given, keys)}


def options_of(key: str, options: Mapping[str, Any], keys: Collection[str] = ()) -> dict[str, Any]:
    """Return the options for one volume: those for all, and its own.

    Examples
    --------
    >>> options = {"level": {"image": 1}, "series": 2}
    >>> options_of("image", options), options_of("label", options)
    ({'series': 2, 'level': 1}, {'series': 2})
    """
    by_key = named_by_key(options, keys)
    shared = {name: given for name, given in options.items() if name not in by_key}
    own = {name: options[name][key] for name in by_key if key in options[name]}
    return {**shared, **own}


def values_of(name: str, given: Any) -> tuple[Any, ...]:
    """Return what an option of :data:`BY_KEY` is for any volume.

    Examples
    --------
    >>> values_of("io", {"image": "pread", "label": "mmap"}), values_of("io", "auto")
    (('pread', 'mmap'), ('auto',))
    """
    return tuple(given.values()) if _is_by_key(name, given, ()) else (given,)


def _is_by_key(name: str, given: Any, keys: Collection[str]) -> bool:
    if not isinstance(given, Mapping):
        return False
    if name == _STORAGE and not all(v is None or isinstance(v, Mapping) for v in given.values()):
        return False
    return name in BY_KEY or any(key in keys for key in given)
