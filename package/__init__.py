"""Stream training patches out of volumes that do not fit in memory.

The code is in the sibling folders of the repository; ``setup.cfg`` installs each of them as a
sub-package of ``voxpipe``.
"""

import sys
from typing import TYPE_CHECKING

from .first_use import at_first_use, import_at_once

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .exported_names import *  # noqa: F403  (written by tools/write_chained_forms.py)

# Modules of the public names, imported at first use. A process that only reads volumes needs no
# torch, whose import takes a second and 190 MB.
_HOMES = {
    "adapters": "Adapter FuseSpatial Lint OnError Profile Timeout register_lint_rule",
    "core": "Grid Region Sample Stream errors",
    "core.errors": "VoxpipeError",
    "dataloader2": "DataLoader2 check index",
    "datapipes": "DataPipe ShuffleSpec explain lazy",
    "datapipes.chain_json": "chain_from_json chain_to_json",
    "datapipes.iter": "from_cases from_decathlon from_manifest from_table list_cases",
    "extensions.bridges.interop": "from_node to_dataset to_node",
    "extensions.bridges.layouts": "from_bids from_dicom from_nnunet",
    "extensions.bridges.training_loops": "VoxpipeDataModule",
    "extensions.cluster.ray_service": "RayReadingService",
    "extensions.formats.raw_frames": "raw_volume",
    "extensions.microscopy.from_ome": "from_ome",
    "extensions.pictures.figures": "show",
    "extensions.pictures.viewers": "view",
    "extensions.pictures.watch": "watch",
    "prediction.predict": "predict",
    "reading_services": "DistributedReadingService MultiProcessingReadingService "
    "ThreadReadingService",
    "spatial": "LazyPatch Policy SpatialPlan",
    "volumes": "AxisMap Backend Decoder Header Volume Voxels convert register_backend "
    "register_decoder save",
}
# Modules with more names, for authors of adapters, services and backends.
_MODULES = "adapters datapipes extensions.recipes intensity reading_services spatial volumes"
__getattr__, __dir__ = at_first_use(globals(), _HOMES, _MODULES.split())


# A notebook shows batches, which are mappings, by the renderer of an extension.
if _shell := getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)():
    import_at_once(".core.views", __name__).show_in(_shell)

# Chained forms are attributes of torch's datapipes: if those are loaded, load ours. Otherwise the
# first public name that needs torch imports both.
if "torch.utils.data" in sys.modules:
    import_at_once(".datapipes", __name__)
