"""Spatial work: plans, ops, which voxels they need, and the resampler."""

from ..core.grid import GRID_TOLERANCE
from ..intensity import Epilogue
from .lazy.lazy_patch import LazyPatch
from .lazy.patch_steps import refuse_changed, stored_labels
from .lazy.transform_chain import TransformChain, joined
from .ops.affine_op import Affine, Augment, Rotate, Shear, Translate, Zoom
from .ops.axis_op import Flip, Orientation, Rotate90
from .ops.choices import Choices, On, OneOf, RandomApply, RandomOrder, SomeOf
from .ops.crop import CenterCrop, Crop, CropOrPad, DivisiblePad, Pad, RandomCrop
from .ops.displacement_op import Elastic, GridDistortion
from .ops.foreground_crop import Answered, BoxNeed, ForegroundCrop, LabelCrop, NeedingOp
from .ops.grid_op import Extent, ResampleTo, Resize, Spacing
from .ops.op import Amount, SpatialOp, Step, without_reading
from .placing.drawn_patch import MaskedPatch, MaskedRegion, WeightedPatch
from .placing.patch import (
    FixedPatch,
    GridPatch,
    PatchLargerThanVolume,
    UniformPatch,
    UniformRegion,
    positions,
    usual_align,
)
from .placing.sampling_mask import SamplingMask, forget_masks, sampling_mask, weight_table
from .placing.weight_table import WeightTable
from .plans.matrices import Space
from .plans.plan import KernelClass, SpatialPlan, box_to_output, kernel_class
from .plans.policy import INTENSITY, LABEL, Policy, policy_of
from .plans.stages import Clip, Displacement, KernelStages
from .resampling.interpolate import Source
from .resampling.resample import apply_plan, resample

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
    "KernelStages",
    "LabelCrop",
    "LazyPatch",
    "MaskedPatch",
    "MaskedRegion",
    "NeedingOp",
    "On",
    "OneOf",
    "Orientation",
    "Pad",
    "PatchLargerThanVolume",
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
    "TransformChain",
    "Translate",
    "UniformPatch",
    "UniformRegion",
    "WeightTable",
    "WeightedPatch",
    "Zoom",
    "apply_plan",
    "box_to_output",
    "forget_masks",
    "joined",
    "kernel_class",
    "policy_of",
    "positions",
    "refuse_changed",
    "resample",
    "sampling_mask",
    "stored_labels",
    "usual_align",
    "weight_table",
    "without_reading",
]
