"""Value pipes: each adds one value op to the patches of a sample.

On a lazy sample this is lazy too: it happens in the batch's memory, after the one interpolation.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ..batching import ApplyValue
from ..core.errors import VoxpipeError
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
from .datapipe import PerItem, stream_name
from .form import bound, form, signature_of, tell_mistakes
from .forms import chained
from .tensors import applied

MORE = [("keys", None), ("name", "")]


class ValuePipe(PerItem):
    """A pipe that applies one value op to the volumes of each sample.

    ``keys`` names the volumes, by default all that are not labels, or all labels for an op
    on labels. Subclasses are made by
    ``value_form``.
    """

    makes: ClassVar[Any] = None
    """The op, a frozen dataclass."""
    __signature__: ClassVar[Any]

    def __init__(self, parent: Pipe, *args: Any, **kwargs: Any) -> None:
        super().__init__(parent)
        cls = type(self)
        arguments = bound(cls.chained, cls.__signature__, args, kwargs)
        name, keys = arguments.pop("name", ""), arguments.pop("keys", None)
        try:
            op = cls.makes(**arguments)
        except VoxpipeError as error:
            raise error.at(self.origin)  # noqa: B904
        tell_mistakes(op, self.origin)
        self.keys = None if keys is None else as_keys(f"{cls.chained}(keys=)", keys)
        self.stream_names = (stream_name(parent, name, cls.chained),)
        self.step = ValueStep(op, self.stream_names[0], self.origin, shared=bool(name))

    def instructions(self) -> tuple[ApplyValue, ...]:
        """Return what applies the op to one sample."""
        return (ApplyValue(self.step, self.keys, self.origin),)

    def apply(self, item: Any) -> Any:
        """Return the sample with the op applied, or with that still to be done."""
        return applied(self.instructions(), item)


def value_form(op: Any, module: str = __name__) -> Any:
    """Return the pipe of a value op, registered under the op's name.

    Parameters
    ----------
    op
        The class of the op.
    module
        Where the pipe is found as ``<Op>Pipe``, so that it can be pickled.
    """
    return chained(op.name)(form(ValuePipe, op, module, signature_of(op, MORE)))


AnisotropyPipe = value_form(Anisotropy)
BiasFieldPipe = value_form(BiasField)
BlurPipe = value_form(Blur)
BrightnessPipe = value_form(Brightness)
ClampPipe = value_form(Clamp)
ContrastPipe = value_form(Contrast)
DropBoxesPipe = value_form(DropBoxes)
DropChannelsPipe = value_form(DropChannels)
GammaPipe = value_form(Gamma)
LowResolutionPipe = value_form(LowResolution)
MapValuesPipe = value_form(MapValues)
MeanOfChannelsPipe = value_form(MeanOfChannels)
NoisePipe = value_form(Noise)
NormalizePipe = value_form(Normalize)
OneHotPipe = value_form(OneHot)
RemapLabelsPipe = value_form(RemapLabels)
RescalePipe = value_form(Rescale)
RescalePercentilesPipe = value_form(RescalePercentiles)
RicianNoisePipe = value_form(RicianNoise)
SelectChannelsPipe = value_form(SelectChannels)
SharpenPipe = value_form(Sharpen)
