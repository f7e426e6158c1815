"""Which objects of the user's a worker could not import, because its script has no file.

Functions and classes travel by name. A worker finds those of the script by importing it, which
it cannot where there is nothing to import: in an interactive session, in a cell of a notebook,
in ``python -c`` and ``python -``. Nor does it find what the script defines only when it is run.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from typing import Any

from .guarded import is_guarded

MOVE = "Move it to the top level of a module that you import, or use num_workers=0."
# All that helps where there is no file to import, the lasting way first.
_TYPED = (
    "Move it to the top level of a module that you import (in a notebook begin its cell with "
    "%%writefile functions.py, and write `from functions import {name}` in the next); or give "
    'MultiProcessingReadingService(..., multiprocessing_context="fork"), on Linux and before CUDA '
    "is in use; or use num_workers=0."
)
_GUARDED = (
    'is defined under if __name__ == "__main__":, which runs in no worker',
    "Move it above that line, or use num_workers=0.",
)
# What a pickle holds that refers to the script; a quick look saves the exact one.
SIGN = b"__main__"


def cannot_follow(thing: Any, data: bytes, script: Mapping[str, str]) -> Any:
    """Return what in ``thing`` is defined in a script that workers cannot import; else None.

    Parameters
    ----------
    thing, data
        What travels, and its pickle.
    script
        What a worker is told of the script: ``script_of_this_process()``.
    """
    if SIGN not in data:
        return None
    found = _Finder()
    found.dump(thing)
    return next((own for own in found.own if not _is_importable(own, script)), None)


def _is_importable(thing: Any, script: Mapping[str, str]) -> bool:
    if not script:
        return False
    # ``python -i script.py``: what is typed after the script has run is in no file.
    code = getattr(thing, "__code__", None)
    in_a_file = code is None or not code.co_filename.startswith("<")
    return in_a_file and not is_guarded(thing, script)


def why_not(thing: Any, script: Mapping[str, str]) -> tuple[str, str]:
    """Return why workers cannot import what ``cannot_follow`` found, and what to do about it."""
    if script and is_guarded(thing, script):
        return _GUARDED
    name = getattr(thing, "__qualname__", "it").partition(".")[0]
    return "is in no file (it was typed, or piped in)", _TYPED.format(name=name)


class _Finder(pickle.Pickler):
    """Collects what a pickle refers to by its name in the script."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), pickle.HIGHEST_PROTOCOL)
        self.own: list[Any] = []

    def reducer_override(self, thing: Any) -> Any:
        """Note functions and classes of the script; pickle everything as ever."""
        name = getattr(thing, "__qualname__", None)
        # An instance has the module of its class, and no name of its own.
        if isinstance(name, str) and getattr(thing, "__module__", None) == "__main__":
            self.own.append(thing)
        return NotImplemented
