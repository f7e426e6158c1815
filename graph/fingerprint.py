"""A short hash of what a graph does, so that a saved state is not resumed on another one."""

from __future__ import annotations

import functools
import hashlib
import os
from typing import Any

import numpy as np

from .node import Pipe, is_pipe, parents_of
from .walk import walk

# Bytes up to which an array counts by its content.
_SMALL = 4096


def fingerprint(sink: Pipe) -> str:
    """Return 16 hex digits over the classes, settings and edges of a graph.

    Functions count by name and large arrays by shape and type: a hash of their content
    would read data, and a changed function body is the user's to judge.
    """
    number: dict[int, int] = {}
    digest = hashlib.blake2b(digest_size=8)
    for position, pipe in enumerate(walk(sink)):
        number[id(pipe)] = position
        own = getattr(type(pipe), "settings", None)
        settings = own(pipe) if own is not None else _public(vars(pipe))
        edges = [number[id(p)] for p in parents_of(pipe)]
        digest.update(f"{type(pipe).__name__}{stable_text(settings)}{edges}\n".encode())
    return digest.hexdigest()


def stable_text(value: Any) -> str:
    """Return a text that is equal for equal settings in any process.

    Examples
    --------
    >>> stable_text({"b": (1, 2.0), "a": len})
    "{'a': builtins.len, 'b': [1, 2.0]}"
    """
    if is_pipe(value):
        return "pipe"
    if isinstance(value, (str, int, float, bool, type(None), bytes)):
        return repr(value)
    if isinstance(value, dict):
        inside = sorted((repr(k), stable_text(v)) for k, v in value.items())
        return "{" + ", ".join(f"{k}: {v}" for k, v in inside) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(map(stable_text, value))) + "}"
    if isinstance(value, slice):
        return f"slice{stable_text((value.start, value.stop, value.step))}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(stable_text, value)) + "]"
    return _text_of_object(value)


def _text_of_object(value: Any) -> str:
    if isinstance(value, functools.partial):
        parts = (value.func, value.args, value.keywords)
        return f"partial{stable_text(parts)}"
    if isinstance(value, os.PathLike):
        return repr(os.fspath(value))
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        array = np.asarray(value)
        # A matrix is a setting and counts by its numbers; a volume is data and would be read.
        small = hashlib.blake2b(array.tobytes()).hexdigest() if array.nbytes <= _SMALL else ""
        return f"array{tuple(array.shape)}{array.dtype}{small}"
    if hasattr(value, "__dataclass_fields__") and not isinstance(value, type):
        fields = {name: getattr(value, name) for name in value.__dataclass_fields__}
        return f"{type(value).__name__}{stable_text(fields)}"
    if hasattr(value, "__qualname__") and hasattr(value, "__module__"):
        return f"{value.__module__}.{value.__qualname__}"
    return type(value).__name__


def _public(settings: dict[str, Any]) -> dict[str, Any]:
    # Names with an underscore hold a foreign pipe's running state, not its settings; its origin
    # is the line on which it was written, which may move.
    return {k: v for k, v in settings.items() if not k.startswith("_") and k != "origin"}
