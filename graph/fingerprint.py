"""A short hash of a graph, so that a saved state is not resumed on another graph."""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..core.validate import LATER
from .node import Pipe, is_pipe, parents_of
from .walk import stream_names, walk

# Larger arrays, in bytes, count by shape and type only.
_SMALL = 4096
# Nesting of objects; deeper ones count by their class. A transform of transforms has two levels;
# deeper objects tend to be loggers or clients, not settings.
_DEEPEST = 2
# A longer list in an object is data, not a setting.
_MOST_ENTRIES = 10_000


def fingerprint(sink: Pipe, leaves_out: Callable[[Pipe], bool] = lambda pipe: False) -> str:
    """Return 16 hex digits over the classes, settings and edges of a graph.

    - Functions count by name: the user judges a change of their body.
    - Objects count by class and public attributes; private ones may be a device or a rank.
    - Large arrays count by shape and type, because hashing would read data.
    - Pipes with a true ``leaves_out`` count without settings.
    """
    number: dict[int, int] = {}
    digest = hashlib.blake2b(digest_size=8)
    for position, pipe in enumerate(walk(sink)):
        number[id(pipe)] = position
        edges = [number[id(p)] for p in parents_of(pipe)]
        text = "" if leaves_out(pipe) else _text_of_pipe(pipe)
        digest.update(f"{text}{edges}\n".encode())
    return digest.hexdigest()


def fingerprint_of_pipe(pipe: Pipe) -> str:
    """Return 6 hex digits over the class and settings of one pipe."""
    return hashlib.blake2b(_text_of_pipe(pipe).encode(), digest_size=3).hexdigest()


def _text_of_pipe(pipe: Pipe) -> str:
    own = getattr(type(pipe), "settings", None)
    settings = own(pipe) if own is not None else _public(vars(pipe))
    off = " off" if is_switched_off(pipe) else ""
    # Stream names of branches count too; others follow from the pipes upstream.
    names = "".join(f" {name}" for name in stream_names(pipe) if "@" in name)
    return f"{type(pipe).__name__}{stable_text(settings)}{off}{names}"


def is_switched_off(pipe: Pipe) -> bool:
    """Whether ``pipe`` shuffles, but is disabled."""
    shuffles = hasattr(type(pipe), "set_shuffle")
    return shuffles and vars(pipe).get("_enabled", True) is False  # torch's attribute


def stable_text(value: Any, depth: int = 0) -> str:
    """Return a text that is equal for equal settings in any process."""
    if is_pipe(value):
        return "pipe"
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, (str, int, float, complex, bool, type(None), bytes, range)):
        return repr(value)
    if isinstance(value, dict):
        inside = sorted((repr(k), stable_text(v, depth)) for k, v in value.items())
        return "{" + ", ".join(f"{k}: {v}" for k, v in inside) + "}"
    if isinstance(value, (set, frozenset)):
        return "{" + ", ".join(sorted(stable_text(v, depth) for v in value)) + "}"
    if isinstance(value, slice):
        return f"slice{stable_text((value.start, value.stop, value.step))}"
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(stable_text(v, depth) for v in value) + "]"
    return _text_of_object(value, depth)


def _text_of_object(value: Any, depth: int) -> str:
    if isinstance(value, functools.partial):
        parts = (value.func, value.args, value.keywords)
        return f"partial{stable_text(parts, depth)}"
    if isinstance(value, os.PathLike):
        return repr(os.fspath(value))
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        array = np.asarray(value)
        # A matrix is a setting and counts by its numbers; a volume is data.
        small = hashlib.blake2b(array.tobytes()).hexdigest() if array.nbytes <= _SMALL else ""
        return f"array{tuple(array.shape)}{array.dtype}{small}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {
            field.name: getattr(value, field.name)
            for field in dataclasses.fields(value)
            # Older saved states, without the field, still fit.
            if field.metadata != LATER or getattr(value, field.name) != field.default
        }
        return f"{type(value).__name__}{stable_text(fields, depth)}"
    if hasattr(value, "__qualname__") and hasattr(value, "__module__"):
        name = f"{_module_of(value)}.{value.__qualname__}"
        owner = value.__self__ if isinstance(value, types.MethodType) else None
        return name if owner is None else f"{name} of {stable_text(owner, depth)}"
    own = _public(getattr(value, "__dict__", {})) if depth < _DEEPEST else {}
    short = {
        name: f"{type(v).__name__} of {len(v)}"
        if isinstance(v, (list, tuple, dict, set, frozenset)) and len(v) > _MOST_ENTRIES
        else v
        for name, v in own.items()
    }
    return type(value).__name__ + (stable_text(short, depth + 1) if own else "")


def _module_of(thing: Any) -> str:
    """Return the name by which an import finds the module of a class or function."""
    name, main = str(thing.__module__), sys.modules["__main__"]
    if name not in ("__main__", "__mp_main__"):
        return name
    spec, file = getattr(main, "__spec__", None), getattr(main, "__file__", None)
    return str(spec.name) if spec else Path(file).stem if file else name


def _public(settings: dict[str, Any]) -> dict[str, Any]:
    # Private names of a foreign pipe hold its running state; the line of its origin may move.
    return {k: v for k, v in settings.items() if not k.startswith("_") and k != "origin"}
