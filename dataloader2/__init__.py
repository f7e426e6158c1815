"""DataLoader2: compile the graph, iterate, state."""

from ..datapipes.shuffle_plans import ShuffleSpec
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

# As in torchdata, ``import voxpipe.dataloader2`` is enough to use these by their full names.
from . import adapter as adapter
from . import error as error
from . import graph as graph
from . import linter as linter
from . import random as random
from . import reading_service as reading_service
from . import shuffle_spec as shuffle_spec
from . import utils as utils
from .check import Report, check, volumes_of
from .dataloader2 import DataLoader2
from .index import index
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
    "ShuffleSpec",
    "State",
    "Stats",
    "check",
    "index",
    "volumes_of",
]
