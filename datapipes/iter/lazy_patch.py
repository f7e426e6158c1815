"""Cut patches out of volumes without reading them."""

from __future__ import annotations

from collections.abc import Iterator

from ...core import Sample
from ...core.errors import PatchSizeError, VoxpipeError
from ...graph import Pipe, Traits
from ...spatial import GridPatch, Step, UniformPatch, UniformRegion, usual_align
from ...spatial.sizes import Size, three, whole_number
from ..datapipe import DataPipe, chained, length_of, stream_name
from .spatial import Adding, pending_of, stepped

SAMPLINGS = ("uniform", "grid")


@chained("lazy_patch")
class LazyPatches(DataPipe):
    """Yield patches of each volume: descriptions of where to cut, no voxels.

    Parameters
    ----------
    size
        Patch size (I, J, K) in voxels of the current grid; one number for all axes.
    samples_per_volume
        Patches drawn from each volume, with ``sampling="uniform"``.
    sampling
        ``"uniform"``: each place where the patch fits is equally likely. ``"grid"``: as
        many patches as cover the volume, in order; the last ones are moved inward.
    overlap
        With ``"grid"``: voxels shared by neighbours, one number or three.
    region
        With ``"uniform"``: all patches of one visit to a volume lie in one region of this size,
        which is drawn for the visit. Each place is as likely as without; patches of one visit are
        closer to each other, so that chunks are decoded once for several of them. What it should
        be is in the loader's ``explain()``. One number or three, at least ``size + align - 1``.
    align
        Regions begin at multiples of this: give the chunk of the stored volumes. By default the
        largest divisor of ``region`` for which it is large enough.

    Notes
    -----
    A crop is *soft*: what is rotated later takes its corners from the volume around the
    patch. Where the patch is larger than the volume, the patch is centred on it, the
    padding rule fills the rest, and one warning says so.

    Raises
    ------
    PatchSizeError
        At construction, for a size or overlap that cannot be.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> pipe = from_cases([{"image": np.zeros((8, 8, 8))}]).open_volume()
    >>> [s["image"].shape for s in pipe.lazy_patch(4, samples_per_volume=2)]
    [(1, 4, 4, 4), (1, 4, 4, 4)]
    """

    traits = Traits()

    def __init__(
        self,
        parent: Pipe,
        size: Size,
        *,
        samples_per_volume: int = 1,
        sampling: str = "uniform",
        overlap: Size = 0,
        region: Size | None = None,
        align: Size | None = None,
        name: str = "lazy_patch",
    ) -> None:
        super().__init__()
        self.parent = parent
        self.samples_per_volume = samples_per_volume
        self.sampling = sampling
        self.stream_names = (stream_name(parent, name),)
        self.region: UniformRegion | None = None
        try:
            self.size = three("size", size, least=1)
            self.overlap = three("overlap", overlap, least=0)
            self._check()
            self.region = self._region(region, align)
        except VoxpipeError as error:
            raise error.at(self.origin)  # noqa: B904

    def _check(self) -> None:
        if self.sampling not in SAMPLINGS:
            msg = f"sampling is one of {SAMPLINGS}, got {self.sampling!r}"
            raise PatchSizeError(msg)
        whole_number("samples_per_volume", self.samples_per_volume, least=1)
        if any(o >= s for o, s in zip(self.overlap, self.size, strict=True)):
            msg = f"overlap must be smaller than the patch {self.size}, got {self.overlap}"
            raise PatchSizeError(msg)
        if self.sampling == "uniform" and any(self.overlap):
            raise PatchSizeError(
                "overlap belongs to sampling='grid'; uniform patches overlap freely"
            )

    def _region(self, region: Size | None, align: Size | None) -> UniformRegion | None:
        if region is None:
            if align is not None:
                raise PatchSizeError("align says where regions begin; give region= too")
            return None
        if self.sampling != "uniform":
            raise PatchSizeError("region belongs to sampling='uniform'; a grid has its own order")
        whole = three("region", region, least=1)
        steps = usual_align(whole, self.size) if align is None else three("align", align, least=1)
        self.stream_names = (*self.stream_names, f"{self.stream_names[0]} region")
        return UniformRegion(whole, self.size, steps)

    def __iter__(self) -> Iterator[Sample]:
        """Yield the patches of one volume after another."""
        step = Step(UniformPatch(self.size, self.origin), self.stream_names[0], self.origin)
        adding = Adding([step])
        placing = None
        if self.region is not None:
            placing = Adding([Step(self.region, self.stream_names[1], self.origin)])
        for sample in self.parent:
            if self.sampling == "grid":
                yield from self._grid(sample)
                continue
            visit = sample
            if placing is not None:
                # The region draws from the case, before there is an ordinal: one for all patches.
                visit = stepped(self, sample, placing)
            for ordinal in range(self.samples_per_volume):
                yield stepped(self, visit, adding, ordinal=ordinal)

    def _grid(self, sample: Sample) -> Iterator[Sample]:
        shape = pending_of(self, sample).plan.shape
        patches = GridPatch(self.size, self.overlap, self.origin).patches(shape)
        for ordinal, patch in enumerate(patches):
            step = Step(patch, self.stream_names[0], self.origin)
            yield stepped(self, sample, Adding([step]), ordinal=ordinal)

    def __len__(self) -> int:
        """Return the number of patches; TypeError for a grid, which depends on the headers."""
        if self.sampling == "grid":
            raise TypeError("lazy_patch(sampling='grid') has no len(): it depends on every header")
        return length_of(self, self.parent) * self.samples_per_volume
