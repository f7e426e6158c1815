"""Value ops: what changes the values of a patch and not where they lie."""

from .normalize import Normalize, normalize
from .value_op import Drawn, Facts, ValueOp, VolumeStatistics
from .value_step import ValueStep

__all__ = [
    "Drawn",
    "Facts",
    "Normalize",
    "ValueOp",
    "ValueStep",
    "VolumeStatistics",
    "normalize",
]
