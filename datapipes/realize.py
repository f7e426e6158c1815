"""Make tensors of lazy patches: one read and one resample per volume."""

from __future__ import annotations

from typing import Any, ClassVar

from ..graph import Pipe, Traits
from ..realizing import InThreads, RealizePatches
from .datapipe import PerItem
from .forms import chained
from .likely_labels import likely_labels
from .tensors import applied


@chained("realize")
class Realize(PerItem):
    """Read and resample every lazy patch of a sample; the rest passes through.

    Each becomes a tensor (C, I, J, K): labels in their stored type, intensities in
    float32, or in their stored type where only lattice ops (crop, flip, ...) were asked for.
    ``batch_patches`` realizes by itself; this pipe is for what needs voxels before.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> volume = np.arange(8, dtype=np.int16).reshape(2, 2, 2)
    >>> sample = next(iter(from_cases([{"image": volume}]).open_volume().realize()))
    >>> sample["image"].flatten().tolist()
    [0, 1, 2, 3, 4, 5, 6, 7]
    """

    traits: ClassVar[Any] = Traits(per_item=True, voxels=True)

    def __init__(self, parent: Pipe) -> None:
        super().__init__(parent)
        self._likely = likely_labels(self.origin, parent)

    threads: int | None = None
    """Volumes that are realized at once; None leaves it to whoever runs the pipe."""

    def instructions(self) -> tuple[RealizePatches | InThreads, ...]:
        """Return what realizes one sample."""
        realize = RealizePatches(self.origin, self._likely)
        return (realize,) if self.threads is None else (InThreads(self.threads, realize),)

    def apply(self, item: Any) -> Any:
        """Return the sample with tensors in it."""
        return applied(self.instructions(), item)
