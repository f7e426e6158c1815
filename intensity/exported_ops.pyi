"""The ops of voxpipe.intensity, written by tools/write_chained_forms.py."""

from .brightness import BiasField, Brightness, Clamp, Contrast, Gamma
from .channel_ops import DropChannels, MeanOfChannels, OneHot, Regions, RemapLabels, SelectChannels
from .choice import PerChannel
from .filters import Anisotropy, Blur, LowResolution, Sharpen
from .morphology import DropComponent, RandomMorphology
from .noise import DropBoxes, Noise, RicianNoise
from .normalize import Normalize, Rescale, RescalePercentiles
from .value_op import MapValues

__all__: list[str] = ['Anisotropy', 'BiasField', 'Blur', 'Brightness', 'Clamp', 'Contrast', 'DropBoxes', 'DropChannels', 'DropComponent', 'Gamma', 'LowResolution', 'MapValues', 'MeanOfChannels', 'Noise', 'Normalize', 'OneHot', 'PerChannel', 'RandomMorphology', 'Regions', 'RemapLabels', 'Rescale', 'RescalePercentiles', 'RicianNoise', 'SelectChannels', 'Sharpen']
