"""Value ops: what changes the values of a patch and not where they lie."""

from .bias_field import BiasField
from .brightness import Brightness, Clamp, Contrast, Gamma
from .channels import DropChannels, MeanOfChannels, OneHot, RemapLabels, SelectChannels
from .filters import Anisotropy, Blur, LowResolution, Sharpen
from .noise import DropBoxes, Noise, RicianNoise
from .normalize import Normalize, Rescale, RescalePercentiles, normalize
from .value_op import (
    AffineValueOp,
    Drawn,
    Epilogue,
    Facts,
    MapValues,
    RandomValueOp,
    RecordedStatistics,
    ValueOp,
    VolumeStatistics,
)
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
