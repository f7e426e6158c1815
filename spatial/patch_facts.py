"""What value ops may ask about a patch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..core import Grid, Stream
from ..intensity import VolumeStatistics
from .plan import SpatialPlan

# Lattices of patches that overlap differ by whole voxels, but for rounding. So that the same
# voxel is found on either side of it, no lattice lies half way between two by design.
_OFF_HALF = 0.1234567


@dataclass(frozen=True)
class PatchFacts:
    """The facts of one patch for one step."""

    volume: Any
    """The volume of the patch."""
    plan: SpatialPlan
    """Where the array's voxels come from, halo included."""
    stream: Stream
    """The step's random numbers."""
    source: Callable[[Any], VolumeStatistics] | None = None
    """Computes the statistics of a volume; by default ``volumes.volume_statistics``."""

    @property
    def grid(self) -> Grid:
        """Shape and affine of the array."""
        return self.plan.grid

    @property
    def corner(self) -> tuple[int, int, int]:
        """Where the first voxel lies on the lattice that patches of one chain share."""
        matrix = self.plan.matrix
        place = np.linalg.solve(matrix[:3, :3], matrix[:3, 3])
        i, j, k = np.rint(place + _OFF_HALF).astype(int).tolist()
        return (i, j, k)

    @property
    def key(self) -> tuple[int, int]:
        """A key for random numbers that belong to voxels of the lattice."""
        return self.stream.key()

    def statistics(self) -> VolumeStatistics:
        """Return the statistics of the whole volume, as stored; may read it, once."""
        if self.source is not None:
            return self.source(self.volume)
        from ..volumes import volume_statistics

        stored = getattr(self.volume, "stored", self.volume)
        return volume_statistics(stored)
