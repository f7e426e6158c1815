"""A short hash of what a graph does, so that a saved state is not resumed on another one."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from .node import Pipe, is_pipe, parents_of
from .walk import walk


def fingerprint(sink: Pipe) -> str:
    """Return 16 hex digits over the classes, settings and edges of a graph.

    Functions count by name, arrays by shape and type: a hash of their content would
    read data, and a changed function body is the user's to judge.
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
    if isinstance(value, dict):
        inside = sorted((repr(k), stable_text(v)) for k, v in value.items())
        return "{" + ", ".join(f"{k}: {v}" for k, v in inside) + "}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(stable_text(v) for v in value) + "]"
    if isinstance(value, (str, int, float, bool, type(None), bytes)):
        return repr(value)
    if isinstance(value, np.ndarray) or hasattr(value, "dtype"):
        return f"array{tuple(value.shape)}{value.dtype}"
    if hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    if hasattr(value, "__dataclass_fields__"):
        fields = {name: getattr(value, name) for name in value.__dataclass_fields__}
        return f"{type(value).__name__}{stable_text(fields)}"
    return type(value).__name__


def _public(settings: dict[str, Any]) -> dict[str, Any]:
    # Names with an underscore hold a foreign pipe's running state, not its settings.
    return {k: v for k, v in settings.items() if not k.startswith("_")}
