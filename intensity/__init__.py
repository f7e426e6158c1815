"""Value ops: what changes the values of a patch and not where they lie."""

from .bias_field import BiasField
from .blur import Blur, Sharpen
from .brightness import Brightness, Clamp, Contrast
from .channels import DropChannels, MeanOfChannels, SelectChannels
from .drop_boxes import DropBoxes
from .gamma import Gamma
from .labels import OneHot, RemapLabels
from .low_resolution import Anisotropy, LowResolution
from .map_values import MapValues
from .noise import Noise, RicianNoise
from .normalize import Normalize, normalize
from .random_op import AffineValueOp, RandomValueOp
from .rescale import Rescale, RescalePercentiles
from .value_op import Drawn, Epilogue, Facts, RecordedStatistics, ValueOp, VolumeStatistics
from .value_step import ValueStep

__all__ = [
    "AffineValueOp",
    "Anisotropy",
    "BiasField",
    "Blur",
    "Brightness",
    "Clamp",
    "Contrast",
    "Drawn",
    "DropBoxes",
    "DropChannels",
    "Epilogue",
    "Facts",
    "Gamma",
    "LowResolution",
    "MapValues",
    "MeanOfChannels",
    "Noise",
    "Normalize",
    "OneHot",
    "RandomValueOp",
    "RecordedStatistics",
    "RemapLabels",
    "Rescale",
    "RescalePercentiles",
    "RicianNoise",
    "SelectChannels",
    "Sharpen",
    "ValueOp",
    "ValueStep",
    "VolumeStatistics",
    "normalize",
]
