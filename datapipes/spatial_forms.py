"""The chained forms of the spatial ops: ``.rotate(15)`` adds ``Rotate(15)`` to every sample.

All of them act on every volume of a sample alike, in world millimetres about the
centre of the current grid unless ``space="voxel"``. Angles are in degrees. A number is
a fixed value, ``(lo, hi)`` is drawn uniformly per sample, three entries are per axis,
and ``p`` is the probability that the pipe acts at all. ``mode``, ``padding``, ``fill`` and
``dtype`` change how intensities are sampled, or any volume by key: ``padding={"label": "border"}``.
"""

from __future__ import annotations

from typing import Any

from ..spatial import (
    Affine,
    Augment,
    CenterCrop,
    Crop,
    CropOrPad,
    DivisiblePad,
    Elastic,
    Flip,
    ForegroundCrop,
    GridDistortion,
    LabelCrop,
    Orientation,
    Pad,
    RandomCrop,
    Resize,
    Rotate,
    Rotate90,
    Shear,
    Spacing,
    Translate,
    Zoom,
)
from .form import form, signature_of
from .forms import chained
from .needing import NeedingPipe
from .sampling import SAMPLING_ARGUMENTS
from .spatial import SpatialPipe

_MORE = [("name", ""), *((name, None) for name in SAMPLING_ARGUMENTS)]


def spatial_form(op: Any, *, keywords_only: bool = False, kind: type = SpatialPipe) -> Any:
    """Return the pipe of a spatial op, registered under the op's name."""
    signature = signature_of(op, _MORE, keywords_only=keywords_only)
    return chained(op.name)(form(kind, op, __name__, signature))


AffinePipe = spatial_form(Affine)
AugmentPipe = spatial_form(Augment, keywords_only=True)
CenterCropPipe = spatial_form(CenterCrop)
CropOrPadPipe = spatial_form(CropOrPad)
CropPipe = spatial_form(Crop)
DivisiblePadPipe = spatial_form(DivisiblePad)
ElasticPipe = spatial_form(Elastic)
FlipPipe = spatial_form(Flip)
ForegroundCropPipe = spatial_form(ForegroundCrop, kind=NeedingPipe)
GridDistortionPipe = spatial_form(GridDistortion)
LabelCropPipe = spatial_form(LabelCrop, kind=NeedingPipe)
OrientationPipe = spatial_form(Orientation)
PadPipe = spatial_form(Pad)
RandomCropPipe = spatial_form(RandomCrop)
ResizePipe = spatial_form(Resize)
Rotate90Pipe = spatial_form(Rotate90)
RotatePipe = spatial_form(Rotate)
ShearPipe = spatial_form(Shear)
SpacingPipe = spatial_form(Spacing)
TranslatePipe = spatial_form(Translate)
ZoomPipe = spatial_form(Zoom)
