"""DataLoader2: compile the graph, iterate, state."""

from typing import TYPE_CHECKING

from ..first_use import alias_modules, at_first_use, names_at
from .dataloader2 import DataLoader2 as DataLoader2
from .iterator import DataLoader2Iterator as DataLoader2Iterator
from .iterator import PauseIteration as PauseIteration
from .iterator import Stats as Stats
from .state import State as State

if TYPE_CHECKING:
    from .exported_names import *  # noqa: F403
_HOMES = {
    ".datapipes.shuffle_plans": "ShuffleSpec",
    ".diagnosing": "Diagnosis",
    ".diagnosing.check_data": "CheckReport check index volumes_of",
    ".reading_services": "CheckpointableReadingServiceInterface DistributedReadingService "
    "InProcessReadingService MultiProcessingReadingService ReadingServiceInterface "
    "PrototypeMultiProcessingReadingService SequentialReadingService",
}
# As in torchdata, ``import voxpipe.dataloader2`` is enough to use its modules by their full names.
_MODULES, _POINTS = alias_modules(__name__), names_at("dataloader2")
__getattr__, __dir__ = at_first_use(globals(), _HOMES, _MODULES, _POINTS)
