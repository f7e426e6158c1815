"""DataLoader2: compile the graph, iterate, state."""

from typing import TYPE_CHECKING

from ..datapipes.shuffle_plans import ShuffleSpec as ShuffleSpec
from ..diagnosing import Diagnosis as Diagnosis
from ..diagnosing.check_data import CheckReport as CheckReport
from ..diagnosing.check_data import check as check
from ..diagnosing.check_data import index as index
from ..diagnosing.check_data import volumes_of as volumes_of
from ..first_use import alias_modules, at_first_use, names_at
from ..reading_services import (
    CheckpointableReadingServiceInterface as CheckpointableReadingServiceInterface,
)
from ..reading_services import DistributedReadingService as DistributedReadingService
from ..reading_services import InProcessReadingService as InProcessReadingService
from ..reading_services import MultiProcessingReadingService as MultiProcessingReadingService
from ..reading_services import (
    PrototypeMultiProcessingReadingService as PrototypeMultiProcessingReadingService,
)
from ..reading_services import ReadingServiceInterface as ReadingServiceInterface
from ..reading_services import SequentialReadingService as SequentialReadingService
from .dataloader2 import DataLoader2 as DataLoader2
from .iterator import DataLoader2Iterator as DataLoader2Iterator
from .iterator import PauseIteration as PauseIteration
from .iterator import Stats as Stats
from .state import State as State

if TYPE_CHECKING:
    from .exported_names import *  # noqa: F403
# As in torchdata, ``import voxpipe.dataloader2`` is enough to use its modules by their full names.
__getattr__, __dir__ = at_first_use(globals(), {}, alias_modules(__name__), names_at("dataloader2"))
