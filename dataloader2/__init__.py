"""DataLoader2: compile the graph, iterate, state."""

from .dataloader2 import DataLoader2, DataLoader2Iterator
from .diagnosis import Diagnosis
from .state import State

__all__ = ["DataLoader2", "DataLoader2Iterator", "Diagnosis", "State"]
