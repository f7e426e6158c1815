"""The ops of voxpipe.intensity, written by tools/write_chained_forms.py."""

from .brightness import BiasField as BiasField, Brightness as Brightness, Clamp as Clamp, Contrast as Contrast, Gamma as Gamma
from .channel_ops import DropChannels as DropChannels, MeanOfChannels as MeanOfChannels, OneHot as OneHot, Regions as Regions, RemapLabels as RemapLabels, SelectChannels as SelectChannels
from .choice import PerChannel as PerChannel
from .filters import Anisotropy as Anisotropy, Blur as Blur, LowResolution as LowResolution, Sharpen as Sharpen
from .morphology import DropComponent as DropComponent, RandomMorphology as RandomMorphology
from .noise import DropBoxes as DropBoxes, Noise as Noise, RicianNoise as RicianNoise
from .normalize import Normalize as Normalize, Rescale as Rescale, RescalePercentiles as RescalePercentiles
from .value_op import MapValues as MapValues

__all__: list[str] = ['Anisotropy', 'BiasField', 'Blur', 'Brightness', 'Clamp', 'Contrast', 'DropBoxes', 'DropChannels', 'DropComponent', 'Gamma', 'LowResolution', 'MapValues', 'MeanOfChannels', 'Noise', 'Normalize', 'OneHot', 'PerChannel', 'RandomMorphology', 'Regions', 'RemapLabels', 'Rescale', 'RescalePercentiles', 'RicianNoise', 'SelectChannels', 'Sharpen']
