"""Spatial work: plans, ops, which voxels they need, and the resampler."""

from typing import TYPE_CHECKING

from ..first_use import export as _export
from ..intensity import Epilogue as Epilogue
from .lazy.lazy_patch import LazyPatch as LazyPatch
from .lazy.patch_steps import refuse_changed as refuse_changed
from .lazy.patch_steps import stored_labels as stored_labels
from .lazy.transform_chain import TransformChain as TransformChain
from .lazy.transform_chain import join_steps as join_steps
from .ops import OPS as OPS
from .ops.choices import Choices as Choices
from .ops.choices import On as On
from .ops.choices import OneOf as OneOf
from .ops.choices import RandomApply as RandomApply
from .ops.choices import RandomOrder as RandomOrder
from .ops.choices import SomeOf as SomeOf
from .ops.foreground_crop import AnsweredOp as AnsweredOp
from .ops.foreground_crop import NeedingOp as NeedingOp
from .ops.op import SpatialOp as SpatialOp
from .ops.op import Step as Step
from .placing.drawn_patch import MaskedPatch as MaskedPatch
from .placing.drawn_patch import MaskedRegion as MaskedRegion
from .placing.drawn_patch import WeightedPatch as WeightedPatch
from .placing.patch import FixedPatch as FixedPatch
from .placing.patch import GridPatch as GridPatch
from .placing.patch import PatchLargerThanVolume as PatchLargerThanVolume
from .placing.patch import PlacedPatch as PlacedPatch
from .placing.patch import UniformPatch as UniformPatch
from .placing.patch import UniformRegion as UniformRegion
from .placing.patch import positions as positions
from .placing.patch import usual_align as usual_align
from .placing.sampling_mask import forget_masks as forget_masks
from .placing.sampling_mask import sampling_mask as sampling_mask
from .placing.sampling_mask import weight_table as weight_table
from .plans.plan import KernelClass as KernelClass
from .plans.plan import SpatialPlan as SpatialPlan
from .plans.plan import box_to_output as box_to_output
from .plans.plan import kernel_class as kernel_class
from .plans.policy import INTENSITY as INTENSITY
from .plans.policy import LABEL as LABEL
from .plans.policy import Policy as Policy
from .plans.stages import Clip as Clip
from .plans.stages import Displacement as Displacement
from .plans.stages import KernelStages as KernelStages
from .resampling.native_resampler import SourceVoxels as SourceVoxels
from .resampling.resample import apply_plan as apply_plan
from .resampling.resample import resample as resample

if TYPE_CHECKING:
    from .exported_ops import *  # noqa: F403  (written by tools/write_chained_forms.py)
_export(globals(), OPS)
