# ruff: noqa: D101  (the docstring of a form is that of its op)
"""Value pipes: each adds one value op to the patches of a sample.

On a lazy sample this is lazy too: it happens in the batch's memory, after the one interpolation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ..batching import ApplyValue
from ..core.validate import as_keys
from ..graph import Pipe
from ..intensity import (
    Anisotropy,
    BiasField,
    Blur,
    Brightness,
    Clamp,
    Contrast,
    DropBoxes,
    DropChannels,
    Gamma,
    LowResolution,
    MapValues,
    MeanOfChannels,
    Noise,
    Normalize,
    OneHot,
    RemapLabels,
    Rescale,
    RescalePercentiles,
    RicianNoise,
    SelectChannels,
    Sharpen,
    ValueStep,
)
from .datapipe import stream_name
from .op_pipe import OpPipe, tell_mistakes
from .tensors import apply_transforms


class ValuePipe(OpPipe):
    """A pipe that applies one value op to the volumes of each sample.

    ``keys`` names the volumes, by default all that are not labels, or all labels for an op on
    labels. A form of your own: ``class InvertPipe(ValuePipe, form="invert", op=Invert): ...``.
    """

    keywords: ClassVar[Mapping[str, Any]] = {"keys": None, "name": ""}

    def __init__(self, parent: Pipe, *args: Any, **kwargs: Any) -> None:
        super().__init__(parent)
        arguments = self.arguments(args, kwargs)
        op = self.make_op(arguments)
        tell_mistakes(op, self.origin)
        name, keys = arguments.get("name", ""), arguments.get("keys")
        self.keys = None if keys is None else as_keys(f"{self.chained}(keys=)", keys)
        self.stream_names = (stream_name(parent, name, self.chained),)
        self.step = ValueStep(op, self.stream_names[0], self.origin, shared=bool(name))

    def instructions(self) -> tuple[ApplyValue, ...]:
        """Return what applies the op to one sample."""
        return (ApplyValue(self.step, self.keys, self.origin),)

    def apply(self, item: Any) -> Any:
        """Return the sample with the op applied, or with that still to be done."""
        return apply_transforms(self.instructions(), item)


class AnisotropyPipe(ValuePipe, form="anisotropy", op=Anisotropy): ...


class BiasFieldPipe(ValuePipe, form="bias_field", op=BiasField): ...


class BlurPipe(ValuePipe, form="blur", op=Blur): ...


class BrightnessPipe(ValuePipe, form="brightness", op=Brightness): ...


class ClampPipe(ValuePipe, form="clamp", op=Clamp): ...


class ContrastPipe(ValuePipe, form="contrast", op=Contrast): ...


class DropBoxesPipe(ValuePipe, form="drop_boxes", op=DropBoxes): ...


class DropChannelsPipe(ValuePipe, form="drop_channels", op=DropChannels): ...


class GammaPipe(ValuePipe, form="gamma", op=Gamma): ...


class LowResolutionPipe(ValuePipe, form="low_resolution", op=LowResolution): ...


class MapValuesPipe(ValuePipe, form="map_values", op=MapValues): ...


class MeanOfChannelsPipe(ValuePipe, form="mean_of_channels", op=MeanOfChannels): ...


class NoisePipe(ValuePipe, form="noise", op=Noise): ...


class NormalizePipe(ValuePipe, form="normalize", op=Normalize): ...


class OneHotPipe(ValuePipe, form="one_hot", op=OneHot): ...


class RemapLabelsPipe(ValuePipe, form="remap_labels", op=RemapLabels): ...


class RescalePipe(ValuePipe, form="rescale", op=Rescale): ...


class RescalePercentilesPipe(ValuePipe, form="rescale_percentiles", op=RescalePercentiles): ...


class RicianNoisePipe(ValuePipe, form="rician_noise", op=RicianNoise): ...


class SelectChannelsPipe(ValuePipe, form="select_channels", op=SelectChannels): ...


class SharpenPipe(ValuePipe, form="sharpen", op=Sharpen): ...
