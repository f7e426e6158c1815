"""Iterable pipes. Importing this registers the chained forms on every torch datapipe."""

from .batch_patches import BatchPatches
from .cases import FromCases, ListCases, from_cases, list_cases
from .flush import Flush
from .from_manifest import FromManifest, from_manifest
from .fused import FusedSpatial
from .lazy_patch import LazyPatches
from .open_volume import OpenVolume
from .realize import Realize
from .recache import Recache
from .spatial import SpatialPipe
from .spatial_forms import (
    AffinePipe,
    AugmentPipe,
    CenterCropPipe,
    CropOrPadPipe,
    CropPipe,
    ElasticPipe,
    FlipPipe,
    PadPipe,
    Rotate90Pipe,
    RotatePipe,
    ShearPipe,
    TranslatePipe,
    ZoomPipe,
    SpacingPipe,
    ResizePipe,
    RandomCropPipe,
    OrientationPipe,
    DivisiblePadPipe,
)
from .values import NormalizePipe, ValuePipe

__all__ = [
    "AffinePipe",
    "AugmentPipe",
    "BatchPatches",
    "CenterCropPipe",
    "CropOrPadPipe",
    "CropPipe",
    "ElasticPipe",
    "FlipPipe",
    "Flush",
    "FromCases",
    "FromManifest",
    "FusedSpatial",
    "LazyPatches",
    "ListCases",
    "NormalizePipe",
    "OpenVolume",
    "PadPipe",
    "Realize",
    "Recache",
    "Rotate90Pipe",
    "RotatePipe",
    "ShearPipe",
    "SpatialPipe",
    "TranslatePipe",
    "ValuePipe",
    "ZoomPipe",
    "SpacingPipe",
    "ResizePipe",
    "RandomCropPipe",
    "OrientationPipe",
    "DivisiblePadPipe",
    "from_cases",
    "from_manifest",
    "list_cases",
]
