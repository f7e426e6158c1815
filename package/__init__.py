"""Stream training patches out of volumes that do not fit in memory.

This folder is only the front door. The code lives in the sibling folders of the
repository; ``setup.cfg`` installs each of them as a sub-package of ``voxpipe``.
"""

from ._version import __version__
from .adapters import Adapter, FuseSpatial, Profile, Timeout
from .core import Grid, Region, Sample, Stream
from .core.errors import VoxpipeError
from .dataloader2 import DataLoader2
from .datapipes import DataPipe
from .datapipes.iter import from_cases, list_cases
from .graph import explain_graph as explain
from .reading_services import InProcessReadingService, MultiProcessingReadingService
from .spatial import LazyPatch, Policy, SpatialPlan
from .volumes import (
    BackendRequest,
    Volume,
    normalize_index,
    register_backend,
    resolve_backend,
    unregister_backend,
)

__all__ = [
    "Adapter",
    "BackendRequest",
    "DataLoader2",
    "DataPipe",
    "FuseSpatial",
    "Grid",
    "InProcessReadingService",
    "LazyPatch",
    "MultiProcessingReadingService",
    "Policy",
    "Profile",
    "Region",
    "Sample",
    "SpatialPlan",
    "Stream",
    "Timeout",
    "Volume",
    "VoxpipeError",
    "__version__",
    "explain",
    "from_cases",
    "list_cases",
    "normalize_index",
    "register_backend",
    "resolve_backend",
    "unregister_backend",
]
