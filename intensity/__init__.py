"""Value ops: what changes the values of a patch and not where they lie."""

from .normalize import Normalize, normalize
from .value_op import Facts, ValueOp, VolumeStatistics

__all__ = ["Facts", "Normalize", "ValueOp", "VolumeStatistics", "normalize"]
