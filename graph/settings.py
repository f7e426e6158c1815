"""What torch's own pipes were given, read off their attributes: they keep no call of the user's."""

from __future__ import annotations

import inspect
from collections.abc import Sized
from enum import Enum
from typing import Any

from torch.utils.data import IterDataPipe, MapDataPipe

from ..core.origin import shorten

_TORCH = "torch.utils.data."
_LOOKS_LIKE_URL = "://"
_PLAIN = (str, bytes, int, float, bool, type(None), range)


def call_arguments(pipe: Any) -> str:
    """Return what one of torch's pipes was given, as it would be written; its parents left out.

    Settings that are the default are left out, and of data only the kind and number are told.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> call_arguments(IterableWrapper([1, 2]).batch(2, drop_last=True))
    '2, drop_last=True'
    >>> call_arguments(IterableWrapper([1, 2]))
    'list of 2'
    """
    kind = type(pipe)
    if not kind.__module__.startswith(_TORCH):
        return ""
    own, told = vars(pipe), []
    for name, parameter in inspect.signature(kind.__init__).parameters.items():
        value = own.get(name, parameter.default)
        if name not in own or _holds_pipes(value):
            continue
        if parameter.default is inspect.Parameter.empty:
            told.append(_text(value))
        elif value is not parameter.default and value != parameter.default:
            told.append(f"{name}={_text(value)}")
    return ", ".join(told)


def _text(value: Any) -> str:
    """Return a setting in words; data may be long, and hold what is not to be shown."""
    if isinstance(value, Enum):
        return str(value)
    if isinstance(value, _PLAIN):
        return shorten(value)
    if callable(value) and hasattr(value, "__name__"):
        return shorten(value)
    if isinstance(value, (list, tuple)) and len(value) == 1 and _is_short(value[0]):
        return shorten(value)
    kind = type(value).__name__
    return f"{kind} of {len(value)}" if isinstance(value, Sized) else kind


def _holds_pipes(value: Any) -> bool:
    inside = value if isinstance(value, (list, tuple)) else (value,)
    return any(isinstance(thing, (IterDataPipe, MapDataPipe)) for thing in inside)


def _is_short(value: Any) -> bool:
    return isinstance(value, _PLAIN) and _LOOKS_LIKE_URL not in str(value)
