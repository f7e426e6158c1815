"""The bottleneck of a loader: each part of the making of a batch measured alone, and judged."""

from .diagnosis import Diagnosis
from .measurement import BATCHES, SECONDS, Extent, Subject, diagnose

__all__ = ["BATCHES", "SECONDS", "Diagnosis", "Extent", "Subject", "diagnose"]
