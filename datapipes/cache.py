"""Keep volumes: in memory, on disk, and from one point of a chain on."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

from ..core import Sample
from ..core.errors import GraphError, SampleError
from ..core.grid import XYZ
from ..core.memory import usable_memory
from ..core.redact import RedactedDict
from ..core.validate import as_keys, validate_int
from ..graph import Pipe, describe, walk
from ..spatial import LazyPatch
from ..spatial.lazy.lazy_patch import patches_of
from ..spatial.lazy.virtual_volume import KeptCopy, KeptSource, use_tiles
from ..storage.location import absolute_place
from ..volumes.conversion.destination import destination_of
from .datapipe import (
    PerItem,
    chained_form,
    first_patch_pipe,
    first_random_pipe,
    lazy_patches,
    with_progress,
)

# Divisor of the memory: decoded chunks, batches, and the model have the rest.
_MEMORY_PART = 4
# If the size of the memory is unknown.
_USUAL_MEMORY = 2 * 1024**3


class _Flushing(PerItem):
    """A pipe after which volumes are those that the chain so far gives."""

    flushes: ClassVar[bool] = True  # later pipes have plans and policies of their own
    keys: tuple[str, ...] | None

    def apply(self, item: Any) -> Sample:
        lazy = lazy_patches(self, item, self.keys or ())
        keys = lazy if self.keys is None else self.keys
        sample: Sample = item.with_data(**{k: lazy[k].with_each(self.evaluate) for k in keys})
        return sample

    def evaluate(self, patch: LazyPatch) -> LazyPatch:
        """Return a patch of another patch's result."""
        raise NotImplementedError


@chained_form("cache")
class Cache(_Flushing):
    """Make the volumes of a chain once, keep them, and read patches from the kept volumes.

    Earlier pipes must have fixed parameters: ``spacing``, ``orientation``, ``foreground_crop``,
    ``normalize`` and the like. They cost one interpolation per volume. Later pipes stay lazy, and
    cost one interpolation per patch, which reads only the chunks that it touches. Voxels are those
    of ``flush()`` in its place, bit for bit. Files have the axes z, y, x, so after ``to_axes()`` a
    later interpolation from a folder may differ in the last bits.

    Parameters
    ----------
    place
        Folder or URL in which volumes are kept as sharded zarr. The first process that needs a
        volume, on any machine, writes it once. A write that was killed is continued. The name of a
        volume is a digest of the current file and of its steps, so another file or chain has other
        volumes. Remove old volumes yourself. None keeps them in memory.
    memory_bytes
        Without a place: bytes of kept voxels in memory, for all workers of a loader together. The
        least recently used parts are made again. By default a quarter of the memory. Workers then
        stay from epoch to epoch.
    keys
        Volumes to keep; by default all.
    chunk
        Voxels along each axis of the decode unit; by default for patches of 96.
    codec
        ``"lz4"`` (written fastest), ``"lz4hc"`` (decodes fastest), ``"zstd"`` (stores least) or
        ``"none"``.
    storage_options
        For fsspec, where the place is a URL. They never appear in messages.

    Raises
    ------
    GraphError
        Something before it is drawn, or cuts patches; this is at construction.
    SampleError
        At the first item: there is no lazy volume.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> cases = [{"image": np.zeros((8, 8, 8), np.int16)}]
    >>> pipe = from_cases(cases).open_volume().spacing(2.0).cache(memory_bytes=10**9).lazy_patch(2)
    >>> print(next(iter(pipe))["image"].realize().shape)
    (1, 2, 2, 2)
    """

    def __init__(
        self,
        parent: Pipe,
        place: str | os.PathLike[str] | None = None,
        *,
        memory_bytes: int | None = None,
        keys: Collection[str] | None = None,
        chunk: int | None = None,
        codec: str = "lz4",
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(parent)
        if (pipe := first_random_pipe(parent)) is not None:
            msg = f"{describe(pipe)} is drawn anew in every epoch, so its result cannot be cached"
            do = "Put cache() before it: what comes before cache() is kept, and what comes after "
            raise GraphError(msg, do=f"{do}it is made for every patch.").at(self.origin)
        if (pipe := first_patch_pipe(parent)) is not None:
            msg = f"{describe(pipe)} cuts patches, and cache() keeps whole volumes"
            do = "Put cache() before it: patches are read from the kept copy."
            raise GraphError(msg, do=do).at(self.origin)
        if place is not None and memory_bytes is not None:
            raise TypeError("memory_bytes is for copies in memory, and a place was given")
        self.place = None if place is None else absolute_place(place)
        self.memory_bytes = 0 if place is not None else _memory(memory_bytes)
        self.keys = None if keys is None else as_keys("cache(keys=)", keys)
        self.chunk, self.codec = chunk, codec
        self.storage_options = RedactedDict(storage_options or {})

    @property
    def stays_in_workers(self) -> bool:
        """Whether it keeps something in the memory of workers, which have to stay for that."""
        return self.place is None

    def apply(self, item: Any) -> Sample:
        """Return the sample with patches that begin with the kept volumes."""
        sample = super().apply(item)
        if not patches_of(sample):
            do = "Put it after open_volume() and before realize()."
            msg = "cache() keeps lazy volumes, and the sample has none"
            raise SampleError(msg, do=do).at(self.origin, item.case)
        return sample

    def evaluate(self, patch: LazyPatch) -> LazyPatch:
        where = f"cache at {self.origin}"
        if self.place is None:
            use_tiles(self, alone=True)
            how: dict[str, Any] = {"is_tiled": True, "memory_bytes": self.memory_bytes}
            return patch.flush_plan(because=f"{where}, in memory", **how)
        name = destination_of(self.place, self.storage_options).name
        how = {"because": f"{where}, in {name}", "is_tiled": True}
        axes = XYZ
        if any(getattr(pipe, "orders_axes", False) for pipe in walk(self)):
            # Files are in the order of their named axes; others need no header here.
            axes, patch = patch.plan.axes, patch.in_axes(XYZ)
        virtual: Any = patch.flush_plan(**how).volume
        settings = (self.chunk, self.codec, dict(self.storage_options))
        copy = KeptCopy.of_source(KeptSource(virtual, self.place, *settings), patch.kind)
        return patch.flush_plan(**how, copy=copy).in_axes(axes)

    def prepare(self, progress: Callable[[int, int], None] | None = None) -> int:
        """Write the volumes of all cases now; return how many there are.

        Parameters
        ----------
        progress
            ``progress(done, total)`` in volumes; by default a progress bar is shown.

        Raises
        ------
        TypeError
            They are kept in memory, where each process makes its own.
        """
        if self.place is None:
            raise TypeError("prepare() writes to a place, and this cache() keeps volumes in memory")
        patches = [patch for item in self for patch in patches_of(item).values()]
        volumes = [leaf.volume for patch in patches for leaf in patch.leaves]
        copies = [copy for one in volumes if (copy := getattr(one, "copy", None)) is not None]
        for copy in with_progress(copies, "cache", "volume", progress):
            copy.probe()
        return len(copies)

    def settings(self) -> Any:
        """Return which volumes are kept; where and how changes no batch."""
        return (self.keys,)


def _memory(memory_bytes: int | None) -> int:
    if memory_bytes is None:
        return (usable_memory() or _USUAL_MEMORY) // _MEMORY_PART
    return validate_int("memory_bytes", memory_bytes, least=1, unit="bytes")


@chained_form("flush")
class Flush(_Flushing):
    """End the fused plan here: later spatial pipes interpolate the result of this one.

    Nothing is read yet; later pipes read only the voxels that they need. Each flush costs one more
    interpolation and its blur. Use it to compare with eager libraries (one flush after every
    spatial pipe), or to sample two pipes differently. Earlier values of ``mode=``, ``padding=`` and
    ``fill=`` stay valid until a pipe after the flush sets others.

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

    why = "flush"  # cause in reports

    def __init__(self, parent: Pipe, keys: Collection[str] | None = None) -> None:
        super().__init__(parent)
        self.keys = None if keys is None else as_keys("flush(keys=)", keys)
        # Whole volumes that are the same in every epoch have the bits that a cache() here keeps.
        self.is_tiled = first_random_pipe(parent) is None and first_patch_pipe(parent) is None

    def evaluate(self, patch: LazyPatch) -> LazyPatch:
        # An op on all of its input gets the region that a patch reads, not the volume.
        is_tiled = self.is_tiled and not patch.looks_at_all
        return patch.flush_plan(because=f"{self.why} at {self.origin}", is_tiled=is_tiled)
