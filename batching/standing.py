"""Which step of which item this process is at: a few numbers in memory that another may read.

A worker that hangs or dies cannot say what it was doing. So it writes it down before each step,
two stores of 4 bytes, where the consumer's process can look.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

NOWHERE = -1
"""No step, or no single item."""
_BYTES = 8


class Standing:
    """The step and the item at hand.

    Examples
    --------
    >>> standing = Standing()
    >>> standing.at(2, item=1)
    >>> standing.step, standing.item
    (2, 1)
    """

    def __init__(self) -> None:
        self._numbers: NDArray[np.int32] = np.full(2, NOWHERE, np.int32)

    def share(self, memory: NDArray[np.uint8]) -> None:
        """Keep the numbers in ``memory``, at least 8 bytes, from now on."""
        self._numbers = memory[:_BYTES].view(np.int32)
        self.at(NOWHERE)

    @property
    def step(self) -> int:
        """Position of the step in the realizing part."""
        return int(self._numbers[0])

    @property
    def item(self) -> int:
        """Position of the item in its batch; ``NOWHERE`` for the batch as a whole."""
        return int(self._numbers[1])

    def at(self, step: int, item: int = NOWHERE) -> None:
        """Note that ``step`` begins."""
        self._numbers[1] = item
        self._numbers[0] = step


def read(memory: Any) -> tuple[int, int]:
    """Return the step and the item that another process notes in ``memory``."""
    step, item = memory[:_BYTES].view(np.int32)
    return int(step), int(item)


STANDING = Standing()
"""Where this process is. Read of workers only, which make one batch at a time."""
