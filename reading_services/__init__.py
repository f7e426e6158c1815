"""Reading services: where the graph runs."""

from .in_process import InProcessReadingService
from .multiprocessing import MultiProcessingReadingService
from .reading_service import Epoch, ReadingService
from .work import Planned, Replicated, Work

__all__ = [
    "Epoch",
    "InProcessReadingService",
    "MultiProcessingReadingService",
    "Planned",
    "ReadingService",
    "Replicated",
    "Work",
]
