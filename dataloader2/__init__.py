"""DataLoader2: compile the graph, iterate, state."""

from ..diagnosing import Diagnosis
from .check import Report, check, volumes_of
from .dataloader2 import DataLoader2
from .iterator import DataLoader2Iterator
from .pausing import PauseIteration
from .state import State

__all__ = [
    "DataLoader2",
    "DataLoader2Iterator",
    "Diagnosis",
    "PauseIteration",
    "Report",
    "State",
    "check",
    "volumes_of",
]
