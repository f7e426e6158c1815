"""Spatial work: plans, ops, which voxels they need, and the resampler."""

from .affine_op import Affine
from .amounts import Amount
from .augment import Augment
from .clip import Clip
from .crop import CenterCrop, Crop
from .crop_or_pad import CropOrPad
from .displacement import Displacement
from .elastic import Elastic
from .epilogue import Epilogue
from .flip import Flip
from .lazy_patch import LazyPatch
from .matrices import Space
from .op import SpatialOp, Step
from .pad import Pad
from .patch import FixedPatch, GridPatch, PatchLargerThanVolume, UniformPatch, positions
from .pending import GRID_TOLERANCE, PendingPlan, joined
from .plan import SpatialPlan
from .policy import INTENSITY, LABEL, Policy, policy_of
from .resample import Source, resample
from .rotate import Rotate
from .rotate90 import Rotate90
from .shear import Shear
from .stages import Lowered
from .translate import Translate
from .uniform_region import UniformRegion, usual_align
from .zoom import Zoom
from .kernel_class import KernelClass, kernel_class
from .spacing import Spacing
from .resize import Resize
from .resample_to import ResampleTo
from .random_crop import RandomCrop
from .orientation import Orientation
from .extent import Extent
from .divisible_pad import DivisiblePad

__all__ = [
    "GRID_TOLERANCE",
    "INTENSITY",
    "LABEL",
    "Affine",
    "Amount",
    "Augment",
    "CenterCrop",
    "Clip",
    "Crop",
    "CropOrPad",
    "Displacement",
    "Elastic",
    "Epilogue",
    "FixedPatch",
    "Flip",
    "GridPatch",
    "LazyPatch",
    "Lowered",
    "Pad",
    "PatchLargerThanVolume",
    "PendingPlan",
    "Policy",
    "Rotate",
    "Rotate90",
    "Shear",
    "Source",
    "Space",
    "SpatialOp",
    "SpatialPlan",
    "Step",
    "Translate",
    "UniformPatch",
    "UniformRegion",
    "Zoom",
    "kernel_class",
    "KernelClass",
    "Spacing",
    "Resize",
    "ResampleTo",
    "RandomCrop",
    "Orientation",
    "Extent",
    "DivisiblePad",
    "joined",
    "policy_of",
    "positions",
    "resample",
    "usual_align",
]
