"""DataLoader2: compile the graph, iterate, state."""

from ..diagnosing import Diagnosis
from ..reading_services import (
    CheckpointableReadingServiceInterface,
    DistributedReadingService,
    InProcessReadingService,
    MultiProcessingReadingService,
    PrototypeMultiProcessingReadingService,
    ReadingServiceInterface,
    SequentialReadingService,
)
from .check import Report, check, volumes_of
from .dataloader2 import DataLoader2
from .iterator import DataLoader2Iterator
from .pausing import PauseIteration
from .state import State
from .stats import Stats

__all__ = [
    "CheckpointableReadingServiceInterface",
    "DataLoader2",
    "DataLoader2Iterator",
    "Diagnosis",
    "DistributedReadingService",
    "InProcessReadingService",
    "MultiProcessingReadingService",
    "PauseIteration",
    "PrototypeMultiProcessingReadingService",
    "ReadingServiceInterface",
    "Report",
    "SequentialReadingService",
    "State",
    "Stats",
    "check",
    "volumes_of",
]
