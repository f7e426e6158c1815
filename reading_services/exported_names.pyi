"""The names of voxpipe.reading_services, written by tools/write_chained_forms.py."""

from .distributed import DistributedReadingService as DistributedReadingService, SequentialReadingService as SequentialReadingService
from .in_process import InProcessReadingService as InProcessReadingService
from .multiprocessing import MultiProcessingReadingService as MultiProcessingReadingService, PrototypeMultiProcessingReadingService as PrototypeMultiProcessingReadingService
from .reading_service import Epoch as Epoch, ReadingService as ReadingService
from .replica import SeedGenerator as SeedGenerator, WorkerInfo as WorkerInfo
from .threads import ThreadReadingService as ThreadReadingService
from .torchdata_service import CheckpointableReadingServiceInterface as CheckpointableReadingServiceInterface, ReadingServiceInterface as ReadingServiceInterface
from .work import PlannedWork as PlannedWork, ReplicatedWork as ReplicatedWork, Work as Work

__all__: list[str] = ['CheckpointableReadingServiceInterface', 'DistributedReadingService', 'Epoch', 'InProcessReadingService', 'MultiProcessingReadingService', 'PlannedWork', 'PrototypeMultiProcessingReadingService', 'ReadingService', 'ReadingServiceInterface', 'ReplicatedWork', 'SeedGenerator', 'SequentialReadingService', 'ThreadReadingService', 'Work', 'WorkerInfo']
