"""The names of extensions in voxpipe.dataloader2, written by tools/write_chained_forms.py."""

from . import adapter, error, graph, linter, random, reading_service, shuffle_spec, utils
from ..datapipes.shuffle_plans import ShuffleSpec
from ..diagnosing import Diagnosis
from ..diagnosing.check_data import CheckReport, check, index, volumes_of
from ..extensions.bridges.training_loops import VoxpipeDataModule
from ..reading_services import CheckpointableReadingServiceInterface, DistributedReadingService, InProcessReadingService, MultiProcessingReadingService, PrototypeMultiProcessingReadingService, ReadingServiceInterface, SequentialReadingService

__all__: list[str] = ['CheckReport', 'CheckpointableReadingServiceInterface', 'Diagnosis', 'DistributedReadingService', 'InProcessReadingService', 'MultiProcessingReadingService', 'PrototypeMultiProcessingReadingService', 'ReadingServiceInterface', 'SequentialReadingService', 'ShuffleSpec', 'VoxpipeDataModule', 'adapter', 'check', 'error', 'graph', 'index', 'linter', 'random', 'reading_service', 'shuffle_spec', 'utils', 'volumes_of']
