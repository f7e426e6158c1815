"""Values: regions, grids, streams, samples, errors. NumPy only; reads no volumes."""

from ..first_use import export as _export
from . import errors as errors
from .call_site import CallSite as CallSite
from .counters import IO_COUNTERS as IO_COUNTERS
from .counters import IOCounters as IOCounters
from .grid import AS_READ as AS_READ
from .grid import Affine as Affine
from .grid import Grid as Grid
from .region import ChunkGrid as ChunkGrid
from .region import OrientedBox as OrientedBox
from .region import Region as Region
from .sample import META as META
from .sample import Sample as Sample
from .stream import Stream as Stream
from .views import Viewable as Viewable
from .views import ViewableVoxels as ViewableVoxels

_export(globals(), [errors])
