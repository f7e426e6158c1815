"""Flush: what comes later starts from voxels as they are here."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, ClassVar

from ..core import Origin, Sample
from ..core.amounts import as_keys
from ..core.errors import SampleError, about_lacking
from ..graph import Pipe
from ..spatial import LazyPatch
from ..spatial.lazy.lazy_patch import patches_of
from .datapipe import PerItem, first_cutting, first_drawing, wrong_item
from .forms import chained


@chained("flush")
class Flush(PerItem):
    """End the fused plan here: spatial pipes that follow interpolate what this one has.

    Nothing is read yet; of what the chain so far gives, later pipes ask for what they need. Each
    flush costs an interpolation more, and its blur, so it is for comparing with libraries that
    work eagerly (:class:`~voxpipe.Eager` puts one before every spatial pipe), and for two pipes
    that are to sample differently: what ``mode=``, ``padding=`` and ``fill=`` said before holds
    on, until a pipe after the flush says otherwise.

    Parameters
    ----------
    keys
        Volumes to flush; by default all.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> volume = np.zeros((8, 8, 8), np.int16)
    >>> pipe = from_cases([{"image": volume}]).open_volume().rotate(15).flush().rotate(-15)
    >>> print(next(iter(pipe))["image"].shape)
    (1, 8, 8, 8)
    """

    flushes: ClassVar[bool] = True
    """What comes after it belongs to another plan, with policies of its own."""

    put_before: Origin | None = None
    """The pipe before which an adapter put it; None where the user wrote it."""

    def __init__(self, parent: Pipe, keys: Collection[str] | None = None) -> None:
        super().__init__(parent)
        self.keys = None if keys is None else as_keys("flush(keys=)", keys)
        # Whole volumes that are the same in every epoch have the bits that a cache() here keeps.
        self.tiled = first_drawing(parent) is None and first_cutting(parent) is None

    def apply(self, item: Any) -> Sample:
        """Return the sample with patches that start anew."""
        if not isinstance(item, Sample):
            raise wrong_item(self, item, "a sample", "Put flush() after open_volume().")
        lazy = patches_of(item)
        keys = lazy if self.keys is None else self.keys
        for key in keys:
            if key not in lazy:
                msg = f"flush() is to flush {key!r}, but the sample has {', '.join(lazy) or 'none'}"
                do = "Name lazy volumes." if key in item else about_lacking(key)
                raise SampleError(msg, do=do).at(self.origin, item.case)
        return item.with_data(**{key: lazy[key].with_each(self._flushed) for key in keys})

    def _flushed(self, patch: LazyPatch) -> LazyPatch:
        # An op that looks at all it is given is given what a patch reads, not the volume.
        tiled = self.tiled and not patch.looks_at_all
        return patch.flushed(because=self.because, tiled=tiled)

    @property
    def because(self) -> str:
        """What ``explain()`` says of the volumes that are sampled anew after it."""
        if self.put_before is None:
            return f"flush at {self.origin}"
        return f"the flush that Eager puts before {self.put_before}"
