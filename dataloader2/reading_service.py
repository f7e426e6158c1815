"""torchdata's place for the reading services."""

from ..reading_services import *  # noqa: F403  as they are there
