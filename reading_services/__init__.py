"""Reading services: where the graph runs."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .in_process import InProcessReadingService
    from .multiprocessing import MultiProcessingReadingService
    from .reading_service import Epoch, ReadingService
    from .work import Planned, Replicated, Work

__all__ = [
    "Epoch",
    "InProcessReadingService",
    "MultiProcessingReadingService",
    "Planned",
    "ReadingService",
    "Replicated",
    "Work",
]

# Imported at first use: a worker needs none of them, and all of them need torch.
_HOME_OF = {
    "Epoch": "reading_service",
    "InProcessReadingService": "in_process",
    "MultiProcessingReadingService": "multiprocessing",
    "Planned": "work",
    "ReadingService": "reading_service",
    "Replicated": "work",
    "Work": "work",
}


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _HOME_OF:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value
