"""The bottleneck of a loader: each part of the making of a batch measured alone, and judged."""

from .diagnosis import CostModel, Diagnosis, Measurement, Prediction
from .measurement import Extent, Subject, diagnose, measure

__all__ = [
    "CostModel",
    "Diagnosis",
    "Extent",
    "Measurement",
    "Prediction",
    "Subject",
    "diagnose",
    "measure",
]
