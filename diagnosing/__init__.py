"""What limits a loader: each part of the making of a batch measured alone, and judged."""

from .ceilings import Subject, diagnose
from .diagnosis import Diagnosis
from .extent import BATCHES, SECONDS, Extent

__all__ = ["BATCHES", "SECONDS", "Diagnosis", "Extent", "Subject", "diagnose"]
