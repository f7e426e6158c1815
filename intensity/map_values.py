"""Map values: a function of the user's own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core.errors import SampleError
from ..core.validate import as_flag
from .value_op import Drawn, Facts, ValueOp


@dataclass(frozen=True)
class MapValues(ValueOp):
    """Apply a function to every patch: float32 (C, I, J, K) in, the same shape out.

    Examples
    --------
    >>> MapValues(np.tanh).describe()
    'map_values tanh, which later spatial ops wait for'
    """

    function: Callable[[NDArray[np.float32]], NDArray[Any]]
    """For workers at the top of a module, where they find it. It may change its array."""
    commutes: bool = False  # type: ignore[misc]  # of other ops a matter of the class
    """Whether later spatial ops may be done first, in the same interpolation as earlier ones: true
    where the function treats every voxel alike and nearly linearly."""

    name: ClassVar[str] = "map_values"

    def __post_init__(self) -> None:
        function: Any = self.function
        if not callable(function):
            msg = f"map_values takes a function, got {function!r}"
            raise ValueError(msg)
        as_flag("commutes", self.commutes)

    @property
    def looks_at_all(self) -> bool:
        # Nobody knows, unless the function treats every voxel alike.
        return not self.commutes

    def apply(self, array: NDArray[Any], drawn: Drawn, facts: Facts) -> NDArray[Any]:
        shape = array.shape
        made = self.function(array)
        if made is None:
            raise SampleError(
                f"map_values: {_name_of(self.function)} returned None",
                do="Let it return the array, also where it changes it in place.",
            )
        result = np.asarray(made)
        if result.shape != shape:
            raise SampleError(
                f"map_values: {_name_of(self.function)} made {result.shape} of a patch of {shape}",
                do="A function for map_values keeps the shape.",
            )
        return result.astype(np.float32, copy=False)

    def describe(self) -> str:
        waits = "" if self.commutes else ", which later spatial ops wait for"
        return f"{self.name} {_name_of(self.function)}{waits}"


def _name_of(function: Any) -> str:
    name = getattr(function, "__qualname__", getattr(function, "__name__", None))
    return name or type(function).__qualname__
