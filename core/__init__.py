"""Values: regions, grids, streams, samples, errors. NumPy only; reads no volumes."""

from . import errors
from .call_site import CallSite
from .counters import IO_COUNTERS, IOCounters
from .grid import Affine, Grid
from .region import ChunkGrid, OrientedBox, Region
from .sample import META, Sample
from .stream import Stream

__all__ = [
    "IO_COUNTERS",
    "META",
    "Affine",
    "CallSite",
    "ChunkGrid",
    "Grid",
    "IOCounters",
    "OrientedBox",
    "Region",
    "Sample",
    "Stream",
    "errors",
]
