"""Reading services: where the graph runs."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .distributed import DistributedReadingService
    from .in_process import InProcessReadingService
    from .interface import CheckpointableReadingServiceInterface, ReadingServiceInterface
    from .multiprocessing import (
        MultiProcessingReadingService,
        PrototypeMultiProcessingReadingService,
    )
    from .reading_service import Epoch, ReadingService
    from .seed_generator import SeedGenerator
    from .sequential import SequentialReadingService
    from .work import Planned, Replicated, Work
    from .worker_hooks import WorkerInfo

# Imported at first use: a worker needs none of them, and all of them need torch.
_HOME_OF = {
    "CheckpointableReadingServiceInterface": "interface",
    "DistributedReadingService": "distributed",
    "Epoch": "reading_service",
    "InProcessReadingService": "in_process",
    "MultiProcessingReadingService": "multiprocessing",
    "Planned": "work",
    "PrototypeMultiProcessingReadingService": "multiprocessing",
    "ReadingService": "reading_service",
    "ReadingServiceInterface": "interface",
    "Replicated": "work",
    "SeedGenerator": "seed_generator",
    "SequentialReadingService": "sequential",
    "Work": "work",
    "WorkerInfo": "worker_hooks",
}

__all__ = [
    "CheckpointableReadingServiceInterface",
    "DistributedReadingService",
    "Epoch",
    "InProcessReadingService",
    "MultiProcessingReadingService",
    "Planned",
    "PrototypeMultiProcessingReadingService",
    "ReadingService",
    "ReadingServiceInterface",
    "Replicated",
    "SeedGenerator",
    "SequentialReadingService",
    "Work",
    "WorkerInfo",
]


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _HOME_OF:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    value = getattr(import_module(f".{_HOME_OF[name]}", __name__), name)
    globals()[name] = value
    return value
