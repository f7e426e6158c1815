"""DataLoader2: compile the graph, iterate, state."""

from .dataloader2 import DataLoader2, DataLoader2Iterator
from .state import State

__all__ = ["DataLoader2", "DataLoader2Iterator", "State"]
