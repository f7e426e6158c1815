"""Bring intensities to mean 0 and deviation 1."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from ...graph import Pipe
from ...intensity import Normalize
from ...realizing import NormalizeRealized
from ..datapipe import PerItem, chained
from ..tensors import applied


@chained("normalize")
class NormalizePatches(PerItem):
    """Subtract a mean and divide by a deviation, in float32.

    Parameters
    ----------
    mean, std
        In the units of the volume. What is left out is taken from the whole volume: it is
        computed once, and kept for later runs.
    keys
        Volumes to normalize; by default all that are not labels.

    Notes
    -----
    On a lazy sample this is lazy too: it happens in the batch's memory, after the one
    interpolation, and does not come between two spatial pipes.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> volume = np.array([1, 3], np.int16).reshape(2, 1, 1)
    >>> sample = next(iter(from_cases([{"image": volume}]).open_volume().normalize().realize()))
    >>> sample["image"].flatten().tolist()
    [-1.0, 1.0]
    """

    def __init__(
        self,
        parent: Pipe,
        mean: float | None = None,
        std: float | None = None,
        *,
        keys: Collection[str] | None = None,
    ) -> None:
        super().__init__(parent)
        self.op = Normalize(mean, std)
        self.keys = (keys,) if isinstance(keys, str) else keys if keys is None else tuple(keys)

    def instructions(self) -> tuple[NormalizeRealized, ...]:
        """Return what normalizes one sample."""
        return (NormalizeRealized(self.op, self.keys, self.origin),)

    def apply(self, item: Any) -> Any:
        """Return the sample with its intensities normalized, or with that still to be done."""
        return applied(self.instructions(), item)
