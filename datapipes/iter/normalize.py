"""Bring intensities to mean 0 and deviation 1."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import torch

from ...core import Sample
from ...core.errors import SampleError
from ...graph import Pipe
from ...intensity import Normalize
from ...spatial import LazyPatch
from ...spatial.lazy_patch import VolumeFacts
from ..datapipe import PerItem, chained, wrong_item


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

    def apply(self, item: Any) -> Sample:
        """Return the sample with its intensities normalized, or with that still to be done."""
        if not isinstance(item, Sample):
            raise wrong_item(self, item, "a sample", "Put normalize() after open_volume().")
        keys = self.keys if self.keys is not None else _intensities(item)
        return item.with_data(**{key: self._normalized(item, key) for key in keys})

    def _normalized(self, sample: Sample, key: str) -> Any:
        thing = sample[key]
        if isinstance(thing, LazyPatch):
            return thing.with_value(self.op)
        made_from = sample.patches.get(key)
        if not isinstance(made_from, LazyPatch) or not isinstance(thing, torch.Tensor):
            msg = f"normalize() does not know where {key!r} of case {sample.case} comes from"
            do = "It normalizes lazy patches and what realize() made of them."
            raise SampleError(msg, do=do).at(self.origin)
        values = thing.numpy().astype(np.float32)
        return torch.from_numpy(self.op.apply(values, VolumeFacts(made_from.volume)))


def _intensities(sample: Sample) -> list[str]:
    lazy = {k: v for k, v in sample.items() if isinstance(v, LazyPatch)}
    realized = {k: v for k, v in sample.patches.items() if isinstance(v, LazyPatch)}
    return [k for k, v in {**realized, **lazy}.items() if v.kind != "label"]
