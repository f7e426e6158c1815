"""Reading services: where the graph runs."""

from typing import TYPE_CHECKING

from ..first_use import at_first_use

if TYPE_CHECKING:
    from .distributed import DistributedReadingService, SequentialReadingService
    from .in_process import InProcessReadingService
    from .multiprocessing import (
        MultiProcessingReadingService,
        PrototypeMultiProcessingReadingService,
    )
    from .reading_service import Epoch, ReadingService
    from .replica import SeedGenerator, WorkerInfo
    from .torchdata_service import CheckpointableReadingServiceInterface, ReadingServiceInterface
    from .work import Planned, Replicated, Work

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
    "distributed": ("DistributedReadingService", "SequentialReadingService"),
    "in_process": ("InProcessReadingService",),
    "multiprocessing": (
        "MultiProcessingReadingService",
        "PrototypeMultiProcessingReadingService",
    ),
    "reading_service": ("Epoch", "ReadingService"),
    "replica": ("SeedGenerator", "WorkerInfo"),
    "torchdata_service": ("CheckpointableReadingServiceInterface", "ReadingServiceInterface"),
    "work": ("Planned", "Replicated", "Work"),
}
__getattr__, __dir__ = at_first_use(globals(), _HOMES)
