"""Iterable pipes. Importing this registers the chained forms on every torch datapipe.

Pipes of volumes are here at once, torchdata's general ones at their first use.
"""

from typing import TYPE_CHECKING

from ..first_use import at_first_use
from . import general
from .background_iterator import Prefetcher
from .batch_patches import BatchPatches, Realize
from .cache import Cache, Flush, Recache
from .cases import FromCases, FromManifest, ListCases, from_cases, from_manifest, list_cases
from .channels import Stack, Unstack
from .choices import OneOfPipe, RandomApplyPipe, RandomOrderPipe, SomeOfPipe
from .open_volume import OpenVolume
from .patch_sampler import PatchSampler
from .points_and_boxes import MoveBoxes, MovePoints
from .replay import Replay
from .resample_to import ResampleToPipe
from .shuffle_plans import Interleave, ShufflePlans
from .spatial import (
    AffinePipe,
    AugmentPipe,
    CenterCropPipe,
    CropOrPadPipe,
    CropPipe,
    DivisiblePadPipe,
    ElasticPipe,
    FlipPipe,
    ForegroundCropPipe,
    FusedSpatial,
    GridDistortionPipe,
    LabelCropPipe,
    OrientationPipe,
    PadPipe,
    RandomCropPipe,
    ResizePipe,
    Rotate90Pipe,
    RotatePipe,
    ShearPipe,
    SpacingPipe,
    SpatialPipe,
    TranslatePipe,
    ZoomPipe,
)
from .values import (
    AnisotropyPipe,
    BiasFieldPipe,
    BlurPipe,
    BrightnessPipe,
    ClampPipe,
    ContrastPipe,
    DropBoxesPipe,
    DropChannelsPipe,
    GammaPipe,
    LowResolutionPipe,
    MapValuesPipe,
    MeanOfChannelsPipe,
    NoisePipe,
    NormalizePipe,
    OneHotPipe,
    RemapLabelsPipe,
    RescalePercentilesPipe,
    RescalePipe,
    RicianNoisePipe,
    SelectChannelsPipe,
    SharpenPipe,
    ValuePipe,
)

if TYPE_CHECKING:
    from .general import *  # noqa: F403

__all__ = [
    "AffinePipe",
    "AnisotropyPipe",
    "AugmentPipe",
    "BatchPatches",
    "BiasFieldPipe",
    "BlurPipe",
    "BrightnessPipe",
    "Cache",
    "CenterCropPipe",
    "ClampPipe",
    "ContrastPipe",
    "CropOrPadPipe",
    "CropPipe",
    "DivisiblePadPipe",
    "DropBoxesPipe",
    "DropChannelsPipe",
    "ElasticPipe",
    "FlipPipe",
    "Flush",
    "ForegroundCropPipe",
    "FromCases",
    "FromManifest",
    "FusedSpatial",
    "GammaPipe",
    "GridDistortionPipe",
    "Interleave",
    "LabelCropPipe",
    "ListCases",
    "LowResolutionPipe",
    "MapValuesPipe",
    "MeanOfChannelsPipe",
    "MoveBoxes",
    "MovePoints",
    "NoisePipe",
    "NormalizePipe",
    "OneHotPipe",
    "OneOfPipe",
    "OpenVolume",
    "OrientationPipe",
    "PadPipe",
    "PatchSampler",
    "Prefetcher",
    "RandomApplyPipe",
    "RandomCropPipe",
    "RandomOrderPipe",
    "Realize",
    "Recache",
    "RemapLabelsPipe",
    "Replay",
    "ResampleToPipe",
    "RescalePercentilesPipe",
    "RescalePipe",
    "ResizePipe",
    "RicianNoisePipe",
    "Rotate90Pipe",
    "RotatePipe",
    "SelectChannelsPipe",
    "SharpenPipe",
    "ShearPipe",
    "ShufflePlans",
    "SomeOfPipe",
    "SpacingPipe",
    "SpatialPipe",
    "Stack",
    "TranslatePipe",
    "Unstack",
    "ValuePipe",
    "ZoomPipe",
    "from_cases",
    "from_manifest",
    "list_cases",
]
__all__ += general.__all__
__getattr__, __dir__ = at_first_use(
    globals(), {f"general.{module}": names for module, names in general.HOMES.items()}
)
