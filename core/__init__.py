"""Values: regions, grids, streams, samples, errors. NumPy only; no I/O, no threads."""

from . import errors
from .chunk_grid import ChunkGrid
from .grid import Affine, Grid
from .oriented_box import OrientedBox
from .origin import CallSite
from .region import Region
from .sample import META, Sample
from .stream import Stream
from .tally import IO_COUNTERS, IOCounters

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
