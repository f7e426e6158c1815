"""torchdata's place for the reading services."""

from ..reading_services import InProcessReadingService, MultiProcessingReadingService

__all__ = ["InProcessReadingService", "MultiProcessingReadingService"]
