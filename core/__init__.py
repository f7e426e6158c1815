"""Values: regions, grids, streams, samples, errors. NumPy only; no I/O, no threads."""

from . import errors
from .chunk_grid import ChunkGrid
from .grid import Affine, Grid
from .oriented_box import OrientedBox
from .origin import Origin
from .region import Region
from .sample import META, Sample
from .stream import Stream
from .tally import TALLY, Tally

__all__ = [
    "META",
    "TALLY",
    "Affine",
    "ChunkGrid",
    "Grid",
    "OrientedBox",
    "Origin",
    "Region",
    "Sample",
    "Stream",
    "Tally",
    "errors",
]
