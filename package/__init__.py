"""Stream training patches out of volumes that do not fit in memory.

This folder is only the front door. The code lives in the sibling folders of the
repository; ``setup.cfg`` installs each of them as a sub-package of ``voxpipe``.
"""

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from .first_use import at_first_use

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .adapters import (
        Adapter,
        CacheTimeout,
        Eager,
        FuseReads,
        FuseSpatial,
        Lint,
        MemoryProfile,
        OnError,
        Override,
        Prefetch,
        Profile,
        Runtime,
        Shuffle,
        Timeout,
    )
    from .core import Grid, Region, Sample, Stream, errors
    from .core.errors import VoxpipeError
    from .dataloader2 import DataLoader2, check, index
    from .dataloader2.interop import from_node, to_dataset, to_node
    from .datapipes import DataPipe, ShuffleSpec, explain, shuffle_report
    from .datapipes.iter import from_cases, from_manifest, list_cases
    from .reading_services import (
        DistributedReadingService,
        InProcessReadingService,
        MultiProcessingReadingService,
        SequentialReadingService,
    )
    from .spatial import LazyPatch, Policy, SpatialPlan
    from .volumes import (
        AxisMap,
        Backend,
        BackendRequest,
        Decoder,
        Header,
        Volume,
        Voxels,
        convert,
        normalize_index,
        register_backend,
        register_decoder,
        resolve_backend,
        unregister_backend,
        unregister_decoder,
    )

__all__ = [
    "Adapter",
    "AxisMap",
    "Backend",
    "BackendRequest",
    "CacheTimeout",
    "DataLoader2",
    "DataPipe",
    "Decoder",
    "DistributedReadingService",
    "Eager",
    "FuseReads",
    "FuseSpatial",
    "Grid",
    "Header",
    "InProcessReadingService",
    "LazyPatch",
    "Lint",
    "MemoryProfile",
    "MultiProcessingReadingService",
    "OnError",
    "Override",
    "Policy",
    "Prefetch",
    "Profile",
    "Region",
    "Runtime",
    "Sample",
    "SequentialReadingService",
    "Shuffle",
    "ShuffleSpec",
    "SpatialPlan",
    "Stream",
    "Timeout",
    "Volume",
    "Voxels",
    "VoxpipeError",
    "__version__",
    "check",
    "convert",
    "errors",
    "explain",
    "from_cases",
    "from_manifest",
    "from_node",
    "index",
    "list_cases",
    "normalize_index",
    "register_backend",
    "register_decoder",
    "resolve_backend",
    "shuffle_report",
    "to_dataset",
    "to_node",
    "unregister_backend",
    "unregister_decoder",
]

# Where each public name lives. They are imported at first use: a process that only
# reads volumes needs no torch, whose import takes a second and 190 MB.
_HOMES = {
    "adapters": "Adapter CacheTimeout Eager FuseReads FuseSpatial Lint MemoryProfile OnError "
    "Override Prefetch Profile Runtime Shuffle Timeout",
    "core": "Grid Region Sample Stream errors",
    "core.errors": "VoxpipeError",
    "dataloader2": "DataLoader2 check index",
    "dataloader2.interop": "from_node to_dataset to_node",
    "datapipes": "DataPipe ShuffleSpec explain shuffle_report",
    "datapipes.iter": "from_cases from_manifest list_cases",
    "reading_services": "DistributedReadingService InProcessReadingService "
    "MultiProcessingReadingService SequentialReadingService",
    "spatial": "LazyPatch Policy SpatialPlan",
    "volumes": "AxisMap Backend BackendRequest Decoder Header Volume Voxels convert "
    "normalize_index register_backend register_decoder resolve_backend unregister_backend "
    "unregister_decoder",
}
__getattr__, __dir__ = at_first_use(globals(), _HOMES, ("intensity", "spatial"))


# Chained forms live on torch's datapipes: where torch's are loaded, ours must be. Where
# they are not, the first public name that needs torch brings both.
if "torch.utils.data" in sys.modules:
    import_module(".datapipes", __name__)
