"""DataLoader2: compile the graph, iterate, state."""

from ..datapipes.shuffle_plans import ShuffleSpec
from ..diagnosing import Diagnosis
from ..first_use import at_first_use
from ..reading_services import (
    CheckpointableReadingServiceInterface,
    DistributedReadingService,
    InProcessReadingService,
    MultiProcessingReadingService,
    PrototypeMultiProcessingReadingService,
    ReadingServiceInterface,
    SequentialReadingService,
)
from .check import Report, check, index, volumes_of
from .dataloader2 import DataLoader2
from .error import PauseIteration
from .iterator import DataLoader2Iterator
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
    "ShuffleSpec",
    "State",
    "Stats",
    "check",
    "index",
    "volumes_of",
]

# As in torchdata, ``import voxpipe.dataloader2`` is enough to use these by their full names.
__getattr__, __dir__ = at_first_use(
    globals(),
    {},
    ("adapter", "graph", "linter", "random", "reading_service", "shuffle_spec", "utils"),
)
