"""Value ops that are a scale, a shift and a clamp: the resampler does them in passing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from numpy.typing import NDArray

from .epilogue import Epilogue
from .random_op import RandomValueOp
from .value_op import Drawn, Facts


@dataclass(frozen=True)
class AffineValueOp(RandomValueOp):
    """Derive, and say which epilogue it is."""

    pointwise: ClassVar[bool] = True

    def as_epilogue(self, drawn: Drawn, facts: Facts) -> Epilogue | None:
        """Return scale, shift and clamp."""
        raise NotImplementedError

    def apply(self, array: NDArray[Any], drawn: Drawn, facts: Facts) -> NDArray[Any]:
        """Change ``array`` in place."""
        epilogue = self.as_epilogue(drawn, facts)
        assert epilogue is not None  # who has none applies it otherwise
        return epilogue.on(array)
