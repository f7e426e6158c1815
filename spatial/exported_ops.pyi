"""The ops of voxpipe.spatial, written by tools/write_chained_forms.py."""

from .ops.affine_op import Affine as Affine, Augment as Augment, Rotate as Rotate, Shear as Shear, Translate as Translate, Zoom as Zoom
from .ops.axis_op import Flip as Flip, Orientation as Orientation, Rotate90 as Rotate90, ToAxes as ToAxes, Transpose as Transpose
from .ops.crop import CenterCrop as CenterCrop, Crop as Crop, CropOrPad as CropOrPad, DivisiblePad as DivisiblePad, Pad as Pad, RandomCrop as RandomCrop
from .ops.displacement_op import Elastic as Elastic, GridDistortion as GridDistortion
from .ops.foreground_crop import ForegroundCrop as ForegroundCrop, LabelCrop as LabelCrop
from .ops.grid_op import ResampleTo as ResampleTo, Resize as Resize, Spacing as Spacing

__all__: list[str] = ['Affine', 'Augment', 'CenterCrop', 'Crop', 'CropOrPad', 'DivisiblePad', 'Elastic', 'Flip', 'ForegroundCrop', 'GridDistortion', 'LabelCrop', 'Orientation', 'Pad', 'RandomCrop', 'ResampleTo', 'Resize', 'Rotate', 'Rotate90', 'Shear', 'Spacing', 'ToAxes', 'Translate', 'Transpose', 'Zoom']
