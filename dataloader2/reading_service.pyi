"""The names of voxpipe.dataloader2.reading_service by table, written by tools/write_chained_forms.py."""

from voxpipe.reading_services import CheckpointableReadingServiceInterface as CheckpointableReadingServiceInterface, DistributedReadingService as DistributedReadingService, InProcessReadingService as InProcessReadingService, MultiProcessingReadingService as MultiProcessingReadingService, PrototypeMultiProcessingReadingService as PrototypeMultiProcessingReadingService, ReadingServiceInterface as ReadingServiceInterface, SequentialReadingService as SequentialReadingService

__all__: list[str] = ['CheckpointableReadingServiceInterface', 'DistributedReadingService', 'InProcessReadingService', 'MultiProcessingReadingService', 'PrototypeMultiProcessingReadingService', 'ReadingServiceInterface', 'SequentialReadingService']
