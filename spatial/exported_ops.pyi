"""The ops of voxpipe.spatial, written by tools/write_chained_forms.py."""

from .ops.affine_op import Affine, Augment, Rotate, Shear, Translate, Zoom
from .ops.axis_op import Flip, Orientation, Rotate90, ToAxes, Transpose
from .ops.crop import CenterCrop, Crop, CropOrPad, DivisiblePad, Pad, RandomCrop
from .ops.displacement_op import Elastic, GridDistortion
from .ops.foreground_crop import ForegroundCrop, LabelCrop
from .ops.grid_op import ResampleTo, Resize, Spacing

__all__: list[str] = ['Affine', 'Augment', 'CenterCrop', 'Crop', 'CropOrPad', 'DivisiblePad', 'Elastic', 'Flip', 'ForegroundCrop', 'GridDistortion', 'LabelCrop', 'Orientation', 'Pad', 'RandomCrop', 'ResampleTo', 'Resize', 'Rotate', 'Rotate90', 'Shear', 'Spacing', 'ToAxes', 'Translate', 'Transpose', 'Zoom']
