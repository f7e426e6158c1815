"""The names of voxpipe.reading_services, written by tools/write_chained_forms.py."""

from .distributed import DistributedReadingService, SequentialReadingService
from .in_process import InProcessReadingService
from .multiprocessing import MultiProcessingReadingService, PrototypeMultiProcessingReadingService
from .reading_service import Epoch, ReadingService
from .replica import SeedGenerator, WorkerInfo
from .threads import ThreadReadingService
from .torchdata_service import CheckpointableReadingServiceInterface, ReadingServiceInterface
from .work import PlannedWork, ReplicatedWork, Work

__all__: list[str] = ['CheckpointableReadingServiceInterface', 'DistributedReadingService', 'Epoch', 'InProcessReadingService', 'MultiProcessingReadingService', 'PlannedWork', 'PrototypeMultiProcessingReadingService', 'ReadingService', 'ReadingServiceInterface', 'ReplicatedWork', 'SeedGenerator', 'SequentialReadingService', 'ThreadReadingService', 'Work', 'WorkerInfo']
