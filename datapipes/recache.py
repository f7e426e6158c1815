"""Read volumes from copies in chunks that fit the patches."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, ClassVar

from ..core import Sample
from ..core.amounts import as_keys
from ..core.errors import GraphError, SampleError, placed
from ..graph import Pipe, Traits
from ..spatial import LazyPatch, PendingPlan
from ..spatial.lazy.lazy_patch import patches_of
from ..volumes import Volume, recached
from ..volumes.stores.location import absolute_place, is_url, public_name
from .datapipe import PerItem, with_progress, wrong_item
from .forms import chained


@chained("recache")
class Recache(PerItem):
    """Convert every volume once into sharded zarr on the local disk, and read it from there.

    The copy is made by whoever reads the volume first, once per machine and version of the
    original; the values, and with them all batches, are the same. Voxels in memory stay there.

    Parameters
    ----------
    chunk
        Voxels along each axis of the decode unit: about a quarter of the patch.
    directory
        Where the copies are kept, by default in the cache directory (``$VOXPIPE_CACHE``).
        It holds at most ``$VOXPIPE_CACHE_BYTES``; the least recently used go first.
    codec
        ``"lz4"`` (decodes fastest), ``"zstd"`` (stores least) or ``"none"``.
    keys
        Volumes to copy; by default all.

    Raises
    ------
    GraphError
        *directory* is in a bucket.
    SampleError
        At the first item: something has moved already; put it right after ``open_volume()``.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import from_cases
    >>> from_cases([{"image": "ct.nii.gz"}]).open_volume().recache(chunk=24)
    recache(chunk=24)
    """

    traits: ClassVar[Any] = Traits(per_item=True)

    def __init__(
        self,
        parent: Pipe,
        chunk: int = 32,
        directory: str | os.PathLike[str] | None = None,
        *,
        codec: str = "lz4",
        keys: Collection[str] | None = None,
    ) -> None:
        super().__init__(parent)
        self.chunk, self.codec = chunk, codec
        self.directory = "" if directory is None else absolute_place(directory)
        if is_url(self.directory):
            what = f"recache() copies to a local disk, and {public_name(self.directory)} is none"
            do = "Write .cache(URL) for copies in a bucket."
            raise GraphError(what, do=do).at(self.origin)
        self.keys = None if keys is None else as_keys("recache(keys=)", keys)

    def apply(self, item: Any) -> Any:
        """Return the sample with its volumes replaced by their copies."""
        if not isinstance(item, Sample):
            do = "Put it right after open_volume()."
            raise wrong_item(self, item, "a sample with volumes", do)
        try:
            return self._recached(item)
        except Exception as error:
            raise placed(error, self.origin, item.case)  # noqa: B904  the very same error

    def _recached(self, sample: Sample) -> Sample:
        patches = patches_of(sample)
        if not patches:
            msg = "there is no volume in the sample"
            raise SampleError(msg, do="Put recache() right after open_volume().")
        if any(map(_is_changed, patches.values())):
            msg = "something was done to the sample already"
            raise SampleError(msg, do="Put recache() right after open_volume().")
        leaves = [(key, leaf) for key, patch in patches.items() for leaf in patch.leaves]
        copies = {id(leaf.volume): self._volume(key, leaf.volume) for key, leaf in leaves}
        # Volumes share a plan, but for those that resample_to() brought onto another grid.
        pending: dict[int, PendingPlan] = {}
        for _, leaf in leaves:
            plan = leaf.pending
            if id(plan) not in pending:
                mine = {key: copies.get(id(v), v) for key, v in plan.references.items()}
                moving = plan.moving and copies.get(id(plan.moving), plan.moving)
                pending[id(plan)] = replace(
                    plan, references=mine, moving=moving, identity=sample.identity
                )

        def moved(patch: LazyPatch) -> LazyPatch:
            read = patch.with_volume(copies[id(patch.volume)])
            return read.with_pending(pending[id(patch.pending)])

        return sample.with_data(**{key: one.with_each(moved) for key, one in patches.items()})

    def _volume(self, key: str, volume: Any) -> Volume:
        if self.keys is not None and key not in self.keys:
            return volume  # type: ignore[no-any-return]
        return recached(volume, self.chunk, self.codec, self.directory)

    def prepare(self, progress: Callable[[int, int], None] | None = None) -> int:
        """Make the copies of all cases now; return how many volumes there are.

        Parameters
        ----------
        progress
            ``progress(done, total)`` in volumes; by default a progress bar is shown.
        """
        patches = [patch for item in self for patch in patches_of(item).values()]
        volumes: list[Any] = [leaf.volume for patch in patches for leaf in patch.leaves]
        for volume in with_progress(volumes, "recache", "volume", progress):
            volume.probe()
        return len(volumes)

    def settings(self) -> Any:
        """Return nothing: where voxels are read from changes no batch."""
        return ()


def _is_changed(patch: LazyPatch) -> bool:
    """Whether something was done to it, or is to be done: a flush leaves volumes in no file."""
    if patch.members and not patch.values:
        return any(map(_is_changed, patch.members))
    return bool(patch.pending.steps or patch.values or hasattr(patch.volume, "patch"))
