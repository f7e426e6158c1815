"""torchdata's place for ``ShuffleSpec``."""

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    """Take ``ShuffleSpec`` from the adapters at its first use."""
    if name == "ShuffleSpec":
        return getattr(import_module("...adapters", __name__), name)
    msg = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(msg)
