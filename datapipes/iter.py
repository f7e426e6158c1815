"""Iterable pipes. Importing this registers the chained forms on every torch datapipe.

Pipes of volumes and torch's own are here at once, those of extensions at their first use.
"""

from typing import TYPE_CHECKING

import torch.utils.data.datapipes.iter as _torch
from torch.utils.data import IterDataPipe as IterDataPipe
from torch.utils.data.datapipes.iter.sharding import SHARDING_PRIORITIES as SHARDING_PRIORITIES

from ..first_use import at_first_use
from .background_iterator import Prefetcher as Prefetcher
from .batch_patches import BatchPatches as BatchPatches
from .batch_patches import DeepSupervision as DeepSupervision
from .batch_patches import FillOutsidePipe as FillOutsidePipe
from .batch_patches import Realize as Realize
from .cache import Cache as Cache
from .cache import Flush as Flush
from .case_lists import FromDecathlon as FromDecathlon
from .case_lists import FromTable as FromTable
from .case_lists import from_decathlon as from_decathlon
from .case_lists import from_table as from_table
from .cases import FromCases as FromCases
from .cases import FromManifest as FromManifest
from .cases import ListCases as ListCases
from .cases import from_cases as from_cases
from .cases import from_manifest as from_manifest
from .cases import list_cases as list_cases
from .channels import Stack as Stack
from .channels import Unstack as Unstack
from .forms import extension_pipes
from .open_volume import OpenVolume as OpenVolume
from .patch_sampler import PatchSampler as PatchSampler
from .points_and_boxes import MoveBoxes as MoveBoxes
from .points_and_boxes import MovePoints as MovePoints
from .replay import Replay as Replay
from .shuffle_plans import Interleave as Interleave
from .shuffle_plans import ShufflePlans as ShufflePlans
from .spatial import *  # noqa: F403
from .stitch import Stitch as Stitch
from .values import *  # noqa: F403

if TYPE_CHECKING:
    from .chained_forms import *  # noqa: F403  (torch's pipes, too, with our forms)
else:
    from torch.utils.data.datapipes.iter import *  # noqa: F403
_TORCH = (*_torch.__all__, "IterDataPipe", "SHARDING_PRIORITIES")
__getattr__, __dir__ = at_first_use(globals(), {"iter": _TORCH}, points=extension_pipes())
