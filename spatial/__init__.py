"""Spatial work: plans, ops, which voxels they need, and the resampler."""

from ..intensity import Epilogue
from .affine_op import Affine
from .amounts import Amount
from .apply_plan import apply_plan
from .augment import Augment
from .choices import Choices, OneOf, RandomApply, RandomOrder, SomeOf
from .clip import Clip
from .crop import CenterCrop, Crop
from .crop_or_pad import CropOrPad
from .displacement import Displacement
from .divisible_pad import DivisiblePad
from .elastic import Elastic
from .estimating import without_reading
from .extent import Extent
from .flip import Flip
from .foreground_crop import ForegroundCrop, LabelCrop
from .grid_distortion import GridDistortion
from .kernel_class import KernelClass, kernel_class
from .lazy_patch import LazyPatch
from .mask_index import forget_masks, sampling_mask
from .masked_patch import MaskedPatch, MaskedRegion
from .matrices import Space
from .needs import Answered, BoxNeed, NeedingOp
from .op import SpatialOp, Step
from .orientation import Orientation
from .pad import Pad
from .patch import FixedPatch, GridPatch, PatchLargerThanVolume, UniformPatch, positions
from .pending import GRID_TOLERANCE, PendingPlan, joined
from .plan import SpatialPlan
from .policy import INTENSITY, LABEL, Policy, policy_of
from .random_crop import RandomCrop
from .resample import Source, resample
from .resample_to import ResampleTo
from .resize import Resize
from .rotate import Rotate
from .rotate90 import Rotate90
from .sampling_mask import SamplingMask
from .shear import Shear
from .spacing import Spacing
from .stages import Lowered
from .stored_labels import stored_labels
from .translate import Translate
from .uniform_region import UniformRegion, usual_align
from .voxel_box import box_to_output
from .zoom import Zoom

__all__ = [
    "GRID_TOLERANCE",
    "INTENSITY",
    "LABEL",
    "Affine",
    "Amount",
    "Answered",
    "Augment",
    "BoxNeed",
    "CenterCrop",
    "Choices",
    "Clip",
    "Crop",
    "CropOrPad",
    "Displacement",
    "DivisiblePad",
    "Elastic",
    "Epilogue",
    "Extent",
    "FixedPatch",
    "Flip",
    "ForegroundCrop",
    "GridDistortion",
    "GridPatch",
    "KernelClass",
    "LabelCrop",
    "LazyPatch",
    "Lowered",
    "MaskedPatch",
    "MaskedRegion",
    "NeedingOp",
    "OneOf",
    "Orientation",
    "Pad",
    "PatchLargerThanVolume",
    "PendingPlan",
    "Policy",
    "RandomApply",
    "RandomCrop",
    "RandomOrder",
    "ResampleTo",
    "Resize",
    "Rotate",
    "Rotate90",
    "SamplingMask",
    "Shear",
    "SomeOf",
    "Source",
    "Space",
    "Spacing",
    "SpatialOp",
    "SpatialPlan",
    "Step",
    "Translate",
    "UniformPatch",
    "UniformRegion",
    "Zoom",
    "apply_plan",
    "box_to_output",
    "forget_masks",
    "joined",
    "kernel_class",
    "policy_of",
    "positions",
    "resample",
    "sampling_mask",
    "stored_labels",
    "usual_align",
    "without_reading",
]
