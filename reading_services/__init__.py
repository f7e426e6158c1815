"""Reading services: where the graph runs."""

from typing import TYPE_CHECKING

from ..first_use import at_first_use

if TYPE_CHECKING:
    from .exported_names import *  # noqa: F403  (written by tools/write_chained_forms.py)


# Imported at first use: a worker needs none of them, and all of them need torch.
_HOMES = {
    "distributed": "DistributedReadingService SequentialReadingService",
    "in_process": "InProcessReadingService",
    "multiprocessing": "MultiProcessingReadingService PrototypeMultiProcessingReadingService",
    "reading_service": "Epoch ReadingService",
    "replica": "SeedGenerator WorkerInfo",
    "threads": "ThreadReadingService",
    "torchdata_service": "CheckpointableReadingServiceInterface ReadingServiceInterface",
    "work": "PlannedWork ReplicatedWork Work",
}
__getattr__, __dir__ = at_first_use(globals(), _HOMES)
