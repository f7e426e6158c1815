"""What limits a loader: each part of the making of a batch measured alone, and judged."""

from .ceilings import Subject, diagnose
from .diagnosis import Diagnosis
from .extent import BATCHES, SECONDS, Extent
from .pace import Pace

__all__ = ["BATCHES", "SECONDS", "Diagnosis", "Extent", "Pace", "Subject", "diagnose"]
