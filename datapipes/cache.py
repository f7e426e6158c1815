"""Keep what a chain makes of each case once, and go on lazily from there."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import Any, ClassVar

from ..core import Sample
from ..core.amounts import as_keys
from ..core.errors import GraphError, SampleError, about_lacking, placed
from ..core.hidden import Hidden
from ..core.memory import usable_memory
from ..core.whole import whole
from ..graph import Pipe, describe
from ..spatial import LazyPatch
from ..spatial.lazy.kept_copy import kept_in
from ..spatial.lazy.lazy_patch import patches_of
from ..spatial.lazy.made_volume import use_tiles_alone
from ..volumes.conversion.destination import destination_of
from ..volumes.stores.location import absolute_place
from .datapipe import PerItem, first_cutting, first_drawing, with_progress, wrong_item
from .forms import chained

# Of the memory: decoded chunks, batches, and the model have the rest.
_MEMORY_PART = 4
# Where no system tells how much memory there is.
_USUAL_MEMORY = 2 * 1024**3


@chained("cache")
class Cache(PerItem):
    """Make the volumes of a chain once, keep them, and read patches from what is kept.

    What comes before is the same in every epoch: ``spacing``, ``orientation``, ``foreground_crop``,
    ``normalize`` and the like, with fixed parameters. It costs one interpolation per volume. What
    comes after is as lazy as ever, and costs one interpolation per patch, which reads no more than
    the chunks that it touches. Voxels are those of ``flush()`` in its place, bit for bit.

    Parameters
    ----------
    place
        Folder or URL in which volumes are kept as sharded zarr: each is written once, by whoever
        needs it first, in any process on any machine. One that was killed is continued. The name
        of a volume is a digest of the file as it is now and of what is done to it, so another
        file or chain has other volumes. Nothing is ever removed. None keeps them in memory.
    memory_bytes
        Without a place: what is kept in memory, in bytes, by all workers of a loader together;
        those parts that were used least lately are made again. By default a quarter of the
        memory. Workers stay from epoch to epoch then.
    keys
        Volumes to keep; by default all.
    chunk
        Voxels along each axis of the decode unit; by default for patches of 96.
    codec
        ``"lz4"`` (decodes fastest), ``"zstd"`` (stores least) or ``"none"``.
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

    flushes: ClassVar[bool] = True
    """What comes after it belongs to another plan, with policies of its own."""

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
        drawing = first_drawing(parent)
        if drawing is not None:
            raise GraphError(
                f"{describe(drawing)} is drawn anew in every epoch, so its result cannot be cached",
                do="Put cache() before it: what comes before cache() is kept, and what comes after "
                "it is made for every patch.",
            ).at(self.origin)
        cutting = first_cutting(parent)
        if cutting is not None:
            raise GraphError(
                f"{describe(cutting)} cuts patches, and cache() keeps whole volumes",
                do="Put cache() before it: patches are read from what is kept.",
            ).at(self.origin)
        if place is not None and memory_bytes is not None:
            msg = "memory_bytes is for what is kept in memory, and a place was given"
            raise TypeError(msg)
        self.place = None if place is None else absolute_place(place)
        self.memory_bytes = 0 if place is not None else _memory(memory_bytes)
        self.keys = None if keys is None else as_keys("cache(keys=)", keys)
        self.chunk, self.codec = chunk, codec
        self.storage_options = Hidden(storage_options or {})

    @property
    def stays_in_workers(self) -> bool:
        """Whether it keeps something in the memory of workers, which have to stay for that."""
        return self.place is None

    def apply(self, item: Any) -> Sample:
        """Return the sample with patches that begin with what is kept."""
        if not isinstance(item, Sample):
            raise wrong_item(self, item, "a sample", "Put cache() after open_volume().")
        lazy = patches_of(item)
        keys = lazy if self.keys is None else self.keys
        for key in keys or (None,):
            if key not in lazy:
                what = "a volume" if key is None else repr(key)
                msg = f"cache() is to keep {what}, but the sample has {', '.join(lazy) or 'none'}"
                do = "Put it after open_volume() and before realize(), and name lazy volumes."
                do = do if key is None or key in item else about_lacking(key, do)
                raise SampleError(msg, do=do).at(self.origin, item.case)
        try:
            return item.with_data(**{key: lazy[key].with_each(self._kept) for key in keys})
        except Exception as error:
            raise placed(error, self.origin, item.case)  # noqa: B904  the very same error

    def _kept(self, patch: LazyPatch) -> LazyPatch:
        where = f"cache at {self.origin}"
        if self.place is None:
            use_tiles_alone(self)
            how: dict[str, Any] = {"tiled": True, "memory_bytes": self.memory_bytes}
            return patch.flushed(because=f"{where}, in memory", **how)
        shown = destination_of(self.place, self.storage_options).name
        return kept_in(
            patch,
            self.place,
            because=f"{where}, in {shown}",
            chunk=self.chunk,
            codec=self.codec,
            storage_options=self.storage_options,
        )

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
            msg = "prepare() writes to a place, and this cache() keeps volumes in memory"
            raise TypeError(msg)
        made = [patch for item in self for patch in patches_of(item).values()]
        volumes = [leaf.volume for patch in made for leaf in patch.leaves]
        copies = [copy for one in volumes if (copy := getattr(one, "copy", None)) is not None]
        for copy in with_progress(copies, "cache", "volume", progress):
            copy.probe()
        return len(copies)

    def settings(self) -> Any:
        """Return which volumes are kept; where and how changes no batch."""
        return (self.keys,)


def _memory(given: int | None) -> int:
    if given is None:
        return (usable_memory() or _USUAL_MEMORY) // _MEMORY_PART
    return whole("memory_bytes", given, least=1, unit="bytes")
