"""What torch's own pipes were given, read off their attributes: they keep no call of the user's."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sized
from enum import Enum
from typing import Any

from torch.utils.data import IterDataPipe, MapDataPipe

from ..core.call_site import shorten

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
    return ", ".join(_told(pipe, None))


def call_of_function(pipe: Any, function: Any, text: str) -> str:
    """Return what a pipe was given that has a function, which ``text`` tells.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> call_of_function(IterableWrapper([(1, 2)]).map(abs, input_col=1), abs, "abs")
    'abs, input_col=1'
    >>> call_of_function(collated := IterableWrapper([1]).collate(), collated.fn, "default_collate")
    ''
    """
    # Nobody wrote the function that is torch's own.
    torchs = str(getattr(function, "__module__", "")).startswith(_TORCH)
    return ", ".join([*([] if torchs else [text]), *_told(pipe, function)])


def _told(pipe: Any, function: Any) -> Iterator[str]:
    kind, own = type(pipe), vars(pipe)
    if not kind.__module__.startswith(_TORCH):
        return
    for name, parameter in inspect.signature(_made_by(kind)).parameters.items():
        value = own.get(name, parameter.default)
        if name not in own or _holds_pipes(value) or (function is not None and value is function):
            continue
        if parameter.default is inspect.Parameter.empty:
            yield _text(value)
        elif not (value is parameter.default or value == parameter.default or _follows(name, own)):
            yield f"{name}={_text(value)}"


def _made_by(kind: type) -> Any:
    """Return what the user called: behind branches stands a pipe that torch makes in their place.

    That one has no defaults of its own.
    """
    shown: Any = getattr(sys.modules[kind.__module__], kind.__name__.removeprefix("_"), kind)
    return vars(shown).get("__new__", shown.__init__)


def _follows(name: str, own: dict[str, Any]) -> bool:
    """Whether torch has put a value in the place of one that was not given."""
    if name == "guaranteed_group_size":
        return bool(own[name] == own.get("group_size"))
    # The indices of a map-style shuffle: all there are, in their order.
    return name == "indices" and own[name] == list(range(len(own[name])))


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
