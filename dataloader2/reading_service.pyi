"""The names of voxpipe.dataloader2.reading_service by table, written by tools/write_chained_forms.py."""

from voxpipe.reading_services import CheckpointableReadingServiceInterface, DistributedReadingService, InProcessReadingService, MultiProcessingReadingService, PrototypeMultiProcessingReadingService, ReadingServiceInterface, SequentialReadingService

__all__: list[str] = ['CheckpointableReadingServiceInterface', 'DistributedReadingService', 'InProcessReadingService', 'MultiProcessingReadingService', 'PrototypeMultiProcessingReadingService', 'ReadingServiceInterface', 'SequentialReadingService']
