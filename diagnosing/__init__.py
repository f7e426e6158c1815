"""The bottleneck of a loader: each part of the making of a batch measured alone, and judged."""

from .cost_model import CostModel, Forecast, Measurement
from .diagnosis import Diagnosis
from .effort import Effort
from .measurement import Subject, diagnose, measure

__all__ = [
    "CostModel",
    "Diagnosis",
    "Effort",
    "Forecast",
    "Measurement",
    "Subject",
    "diagnose",
    "measure",
]
