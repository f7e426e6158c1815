"""Recipes: functions that write a whole chain, of which the user may change any pipe."""

from ...first_use import export as _export
from .monai import monai_segmentation as monai_segmentation
from .nnunet import nnunet as nnunet
from .nnunet import nnunet_augmentation as nnunet_augmentation
from .views import two_views as two_views

_export(globals())
