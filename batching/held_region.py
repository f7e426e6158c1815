"""A region of a stored volume that is in memory, for patches that read it from there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..core import OrientedBox, Region
from ..intensity import RecordedStatistics
from ..spatial import LazyPatch
from ..volumes import volume_statistics
from ..volumes.voxels import Voxels


class HeldRegion:
    """A volume of which one region is in memory; everything else is asked of the real one."""

    def __init__(self, volume: Any, region: Region, voxels: Voxels) -> None:
        self._volume = volume
        self._region = region
        self._voxels = voxels

    def read(self, region: Region, box: OrientedBox | None = None) -> Voxels:
        """Return voxels of the region that is there, or read others."""
        if region.intersect(self._region) != region:
            voxels: Voxels = self._volume.read(region, box)
            return voxels
        inside = region.shift([-a for a in self._region.start]).slices
        return replace(self._voxels, array=self._voxels.array[(slice(None), *inside)])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._volume, name)


def with_voxels(patch: LazyPatch, region: Region, voxels: Voxels) -> LazyPatch:
    """Return a patch of a stored volume that finds a region of it in memory."""
    volume: Any = patch.volume
    statistics = patch.statistics or volume_statistics

    def of_the_real_one(_: Any) -> RecordedStatistics:
        return statistics(volume)

    held: Any = HeldRegion(volume, region, voxels)
    return replace(patch, volume=held, statistics=of_the_real_one)
