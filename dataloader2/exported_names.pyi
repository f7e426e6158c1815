"""The names of extensions in voxpipe.dataloader2, written by tools/write_chained_forms.py."""

from . import adapter as adapter, error as error, graph as graph, linter as linter, random as random, reading_service as reading_service, shuffle_spec as shuffle_spec, utils as utils
from ..datapipes.shuffle_plans import ShuffleSpec as ShuffleSpec
from ..diagnosing import Diagnosis as Diagnosis
from ..diagnosing.check_data import CheckReport as CheckReport, check as check, index as index, volumes_of as volumes_of
from ..extensions.bridges.training_loops import VoxpipeDataModule as VoxpipeDataModule
from ..reading_services import CheckpointableReadingServiceInterface as CheckpointableReadingServiceInterface, DistributedReadingService as DistributedReadingService, InProcessReadingService as InProcessReadingService, MultiProcessingReadingService as MultiProcessingReadingService, PrototypeMultiProcessingReadingService as PrototypeMultiProcessingReadingService, ReadingServiceInterface as ReadingServiceInterface, SequentialReadingService as SequentialReadingService

__all__: list[str] = ['CheckReport', 'CheckpointableReadingServiceInterface', 'Diagnosis', 'DistributedReadingService', 'InProcessReadingService', 'MultiProcessingReadingService', 'PrototypeMultiProcessingReadingService', 'ReadingServiceInterface', 'SequentialReadingService', 'ShuffleSpec', 'VoxpipeDataModule', 'adapter', 'check', 'error', 'graph', 'index', 'linter', 'random', 'reading_service', 'shuffle_spec', 'utils', 'volumes_of']
