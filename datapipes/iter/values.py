"""Value pipes: each adds one value op to the patches of a sample.

On a lazy sample this is lazy too: it happens in the batch's memory, after the one interpolation.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ...core.errors import VoxpipeError
from ...graph import Pipe
from ...intensity import Normalize, ValueStep
from ...realizing import ApplyValue
from ..datapipe import PerItem, chained, stream_name
from ..tensors import applied
from .form import bound, form, signature_of

MORE = [("keys", None), ("name", "")]


class ValuePipe(PerItem):
    """A pipe that applies one value op to the volumes of each sample.

    ``keys`` names the volumes, by default all that are not labels. Subclasses are made by
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
        self.keys = (keys,) if isinstance(keys, str) else keys if keys is None else tuple(keys)
        self.stream_names = (stream_name(parent, name or cls.chained),)
        self.step = ValueStep(op, self.stream_names[0], self.origin)

    def instructions(self) -> tuple[ApplyValue, ...]:
        """Return what applies the op to one sample."""
        return (ApplyValue(self.step, self.keys, self.origin),)

    def apply(self, item: Any) -> Any:
        """Return the sample with the op applied, or with that still to be done."""
        return applied(self.instructions(), item)


def value_form(op: Any) -> Any:
    """Return the pipe of a value op, registered under the op's name."""
    return chained(op.name)(form(ValuePipe, op, __name__, signature_of(op, MORE)))


NormalizePipe = value_form(Normalize)
