"""DataLoader2: compile the graph, iterate, state."""

from ..diagnosing import Diagnosis
from .dataloader2 import DataLoader2
from .iterator import DataLoader2Iterator
from .state import State

__all__ = ["DataLoader2", "DataLoader2Iterator", "Diagnosis", "State"]
