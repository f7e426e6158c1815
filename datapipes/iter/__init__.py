"""Iterable pipes. Importing this registers the chained forms on every torch datapipe."""

from .batch_patches import BatchPatches
from .cases import FromCases, ListCases, from_cases, list_cases
from .choices import OneOfPipe, RandomApplyPipe, RandomOrderPipe, SomeOfPipe
from .flush import Flush
from .from_manifest import FromManifest, from_manifest
from .fused import FusedSpatial
from .interleave import Interleave
from .lazy_patch import LazyPatches
from .open_volume import OpenVolume
from .realize import Realize
from .recache import Recache
from .resample_to import ResampleToPipe
from .spatial import SpatialPipe
from .spatial_forms import (
    AffinePipe,
    AugmentPipe,
    CenterCropPipe,
    CropOrPadPipe,
    CropPipe,
    DivisiblePadPipe,
    ElasticPipe,
    FlipPipe,
    OrientationPipe,
    PadPipe,
    RandomCropPipe,
    ResizePipe,
    Rotate90Pipe,
    RotatePipe,
    ShearPipe,
    SpacingPipe,
    TranslatePipe,
    ZoomPipe,
)
from .values import NormalizePipe, ValuePipe

__all__ = [
    "AffinePipe",
    "AugmentPipe",
    "BatchPatches",
    "CenterCropPipe",
    "CropOrPadPipe",
    "CropPipe",
    "DivisiblePadPipe",
    "ElasticPipe",
    "FlipPipe",
    "Flush",
    "FromCases",
    "FromManifest",
    "FusedSpatial",
    "Interleave",
    "LazyPatches",
    "ListCases",
    "NormalizePipe",
    "OneOfPipe",
    "OpenVolume",
    "OrientationPipe",
    "PadPipe",
    "RandomApplyPipe",
    "RandomCropPipe",
    "RandomOrderPipe",
    "Realize",
    "Recache",
    "ResampleToPipe",
    "ResizePipe",
    "Rotate90Pipe",
    "RotatePipe",
    "ShearPipe",
    "SomeOfPipe",
    "SpacingPipe",
    "SpatialPipe",
    "TranslatePipe",
    "ValuePipe",
    "ZoomPipe",
    "from_cases",
    "from_manifest",
    "list_cases",
]
