"""Reading services: where the graph runs."""

from typing import TYPE_CHECKING

from ..first_use import at_first_use

if TYPE_CHECKING:
    from .distributed import DistributedReadingService
    from .in_process import InProcessReadingService
    from .interface import CheckpointableReadingServiceInterface, ReadingServiceInterface
    from .multiprocessing import (
        MultiProcessingReadingService,
        PrototypeMultiProcessingReadingService,
    )
    from .reading_service import Epoch, ReadingService
    from .seeds.seed_generator import SeedGenerator
    from .sequential import SequentialReadingService
    from .work import Planned, Replicated, Work
    from .work.hooks import WorkerInfo

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


# Imported at first use: a worker needs none of them, and all of them need torch.
_HOMES = {
    "distributed": ("DistributedReadingService",),
    "in_process": ("InProcessReadingService",),
    "interface": ("CheckpointableReadingServiceInterface", "ReadingServiceInterface"),
    "multiprocessing": (
        "MultiProcessingReadingService",
        "PrototypeMultiProcessingReadingService",
    ),
    "reading_service": ("Epoch", "ReadingService"),
    "seeds.seed_generator": ("SeedGenerator",),
    "sequential": ("SequentialReadingService",),
    "work": ("Planned", "Replicated", "Work"),
    "work.hooks": ("WorkerInfo",),
}
__getattr__, __dir__ = at_first_use(globals(), _HOMES)
