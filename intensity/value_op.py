"""What a value op is: it changes the values of a patch in place, never where they lie."""

from __future__ import annotations

from typing import ClassVar, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray


class VolumeStatistics(Protocol):
    """Numbers over all voxels of a volume."""

    @property
    def mean(self) -> float:
        """Mean of the values."""

    @property
    def std(self) -> float:
        """Population standard deviation of the values."""


class Facts(Protocol):
    """What a value op may ask about the volume that the patch comes from.

    Facts are passed in: a value op opens no file.
    """

    def statistics(self) -> VolumeStatistics:
        """Return the statistics of the whole volume; may read it, once."""


@runtime_checkable
class ValueOp(Protocol):
    """A value op: a frozen dataclass, picklable, equal by value."""

    name: ClassVar[str]
    """The chained form, e.g. ``"normalize"``."""

    def apply(self, array: NDArray[np.float32], facts: Facts) -> NDArray[np.float32]:
        """Change ``array``, (C, I, J, K) float32, in place and return it."""

    def describe(self) -> str:
        """Return the op in the words of the user, on one line."""
