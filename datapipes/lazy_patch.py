"""Cut patches out of volumes without reading them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from ..core import Sample
from ..core.errors import PatchSizeError, VoxpipeError, add_location
from ..core.sample import case_of
from ..graph import Pipe, Traits
from ..spatial import (
    FixedPatch,
    GridPatch,
    MaskedPatch,
    MaskedRegion,
    PendingPlan,
    SpatialOp,
    Step,
    UniformPatch,
    UniformRegion,
    WeightedPatch,
    usual_align,
)
from ..spatial.ops.parameters import Size, size_of, size_on, three, whole_number
from ..volumes import Volume
from .datapipe import DataPipe, excused, length_of, stream_name, with_progress
from .epoch import count_planned
from .form import refuse_unknown_arguments
from .forms import chained
from .inside_mask import ByWeights, InsideMask, masked_by, weighted_by
from .spatial import Adding, pending_of, stepped

SAMPLINGS = ("uniform", "grid")
WORDS = {
    "num_samples": "samples_per_volume",
    "num_patches": "samples_per_volume",
    "samples": "samples_per_volume",
    "roi_size": "size",
    "spatial_size": "size",
    "patch_size": "size",
    "patch_overlap": "overlap",
    "probability_map": "weights",
    "weight_map": "weights",
    "w_key": "weights",
    "oversample_foreground_percent": "oversample",
}
"""What MONAI and TorchIO call our arguments."""


@chained("lazy_patch")
class LazyPatches(DataPipe):
    """Yield patches of each volume: descriptions of where to cut, no voxels.

    Parameters
    ----------
    size
        Patch size (I, J, K) in voxels of the current grid; one number for all axes, of 2-D data in
        their plane. None keeps an axis: ``(32, 32, None)``.
    samples_per_volume
        Patches drawn from each volume, with ``sampling="uniform"``.
    sampling
        ``"uniform"``: each place where the patch fits is equally likely. ``"grid"``: as
        many patches as cover the volume, in order; the last ones are moved inward.
    overlap
        With ``"grid"``: voxels shared by neighbours: one number, for all axes along which a patch
        has more than one voxel; or three.
    region
        With ``"uniform"``: all patches of one visit to a volume lie in one region of this size,
        which is drawn for the visit. Each place is as likely as without; patches of one visit are
        closer to each other, so that chunks are decoded once for several of them. What it should
        be is in the loader's ``explain()``. One number or three, at least ``size + align - 1``.
    mask
        With ``"uniform"``: patches lie where this says so. With ``"grid"``: patches that hold none
        of it are left out, and with ``min_share`` those that hold less. Key of a label or boolean
        volume of the sample, or a ``Volume`` for all cases; any voxel that is not 0 is inside. An
        image is refused, told by its many values, unless ``class_weights`` names labels. It may be
        coarser than the volumes and lie on a grid of its own: then leave its key out of
        ``open_volume(keys=...)``, and give a path or ``Volume(array, affine=...)``.
    min_share
        With ``mask``: part of the patch that is inside, at least; of a grid exactly, else to within
        the cells (8 voxels, or a quarter of the patch) that faces of the patch cut.
    class_weights
        With ``mask``: how often a voxel of each label is in the middle, voxel ``n // 2`` of n,
        ``{0: 1, 2: 3}``; near a face the patch is moved inward. Labels that a volume lacks leave
        their part to the others; ``min_share`` is of the drawn one.
        ``"other"`` stands for all that are not listed, together.
    oversample
        With ``mask``: the share of each batch that is drawn about foreground, as nnU-Net's
        ``oversample_foreground_percent``; the rest lies anywhere. The foreground's class is drawn
        uniformly among the labels that the case has, 0 apart, or by ``class_weights``. The last
        patches of a batch are those, as many as ``n - round(n * (1 - oversample))`` of n. Patches
        that come in no batch of ``batch_patches()`` draw each whether they are one. A case without
        foreground gives patches anywhere.
    weights
        With ``"uniform"``, and instead of ``mask``: how likely each voxel is to be the middle of a
        patch, voxel ``n // 2`` of n, wherever the patch fits. Key of a volume of the sample, or a
        ``Volume`` for all cases, on any grid: one channel of finite numbers from 0, whose sum does
        not matter. Voxels too near a face have no part, unless no others weigh anything: then the
        patch is moved inward. On an axis with one place for the patch, every voxel counts.
    otherwise
        With ``mask`` or ``weights``, where they have no such place: ``"error"``, or a patch
        ``"anywhere"``.
    align
        Regions begin at multiples of this: give the chunk of the stored volumes. By default the
        largest divisor of ``region`` for which it is large enough.

    Notes
    -----
    A crop is *soft*: what is rotated later takes its corners from the volume around the
    patch. Where the patch is larger than the volume, the patch is centred on it, the
    padding rule fills the rest, and one warning says so.

    A mask or map of weights is read once per volume, by the process that first works out a plan
    with it, and kept as runs of voxels that weigh the same, for files also on disk; :meth:`prepare`
    does it for all cases now. They take a byte for 500 voxels of a mask, 1 MiB of a map of weights.
    Where that is too little for every run, as many are kept as fit, spread evenly over all that can
    be drawn: what is drawn is of its class always, and its place one of some ten thousand.

    Raises
    ------
    PatchSizeError
        At construction, for a size or overlap that cannot be. Later, where a mask has no place
        for a patch or weights are no weights; the message says so with the case.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> pipe = from_cases([{"image": np.zeros((8, 8, 8))}]).open_volume()
    >>> [s["image"].shape for s in pipe.lazy_patch(4, samples_per_volume=2)]
    [(1, 4, 4, 4), (1, 4, 4, 4)]

    Patches around label 2 and the background, half of them each:

    >>> label = np.zeros((8, 8, 8), np.uint8)
    >>> label[6, 6, 6] = 2
    >>> pipe = from_cases([{"label": label}]).open_volume()
    >>> pipe = pipe.lazy_patch(4, samples_per_volume=20, mask="label", class_weights={0: 1, 2: 1})
    >>> {s["label"].draws["lazy_patch"]["class"] for s in pipe} == {0, 2}
    True

    Patches about voxels that a map makes likely:

    >>> likely = np.zeros((8, 8, 8), np.float32)
    >>> likely[3, 4, 5], likely[5, 4, 5] = 0.9, 0.1
    >>> pipe = from_cases([{"image": likely, "likely": likely}]).open_volume()
    >>> pipe = pipe.lazy_patch(4, samples_per_volume=20, weights="likely")
    >>> {tuple(s["image"].draws["lazy_patch"]["start"]) for s in pipe} == {(1, 2, 3), (3, 2, 3)}
    True
    """

    traits = Traits()
    cuts_patches: ClassVar[bool] = True
    """What comes after it is not whole volumes."""

    @property
    def is_drawn(self) -> bool:
        """Whether places are drawn; those of a grid are the same in every epoch."""
        return self.sampling != "grid"

    def __new__(cls, *args: Any, **kwargs: Any) -> LazyPatches:
        """Refuse unknown arguments in the words of other libraries too."""
        known = [*inspect.signature(cls.__init__).parameters][3:]
        refuse_unknown_arguments(cls.chained, kwargs, ["size", *known], WORDS)
        pipe = super().__new__(cls, *args, **kwargs)
        assert isinstance(pipe, cls)
        return pipe

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
        mask: str | Volume | None = None,
        min_share: float = 0.0,
        class_weights: Mapping[Any, float] | None = None,
        oversample: float | None = None,
        weights: str | Volume | None = None,
        otherwise: str = "error",
        name: str = "",
    ) -> None:
        super().__init__()
        self.parent = parent
        self.samples_per_volume = samples_per_volume
        self.sampling = sampling
        self.stream_names = (stream_name(parent, name, self.chained),)
        self._shared = bool(name)
        self.region: UniformRegion | None = None
        self.mask = mask
        self.weights = weights
        self._counted: int | None = None
        try:
            self.asked = size_of("size", size)
            # What can be checked before a grid is known: None is as long as an axis may be.
            self.size = three("size", _limits(self.asked), least=1)
            self.overlap = self._overlap(overlap)
            self._check()
            self.region = self._region(region, align)
            about = {"class_weights": class_weights, "oversample": oversample}
            self._placed = self._placing(
                mask, {"min_share": min_share, **about}, weights, otherwise
            )
            self.oversample = oversample
        except VoxpipeError as error:
            raise error.at(self.origin)  # noqa: B904

    def _placing(
        self, mask: Any, given: Mapping[str, Any], weights: Any, otherwise: str
    ) -> InsideMask | ByWeights | None:
        """Return what makes the op of each sample, where not every place is as likely."""
        if given["oversample"] is not None and self.region is not None:
            raise PatchSizeError(
                "oversample says that the other patches lie anywhere, and region that all of a "
                "visit lie beside each other",
                do="Leave one of them out.",
            )
        if weights is None:
            return masked_by(self.asked, mask, given, otherwise, self.sampling, self.origin)
        return weighted_by(
            self.asked, weights, {"mask": mask, **given}, otherwise, self.sampling, self.origin
        )

    def _overlap(self, overlap: Size) -> tuple[int, int, int]:
        """Return it per axis; one number leaves axes of one voxel alone, which share nothing."""
        i, j, k = three("overlap", overlap, least=0)
        if isinstance(overlap, int):
            i, j, k = (0 if s == 1 else n for s, n in zip(self.size, (i, j, k), strict=True))
        return (i, j, k)

    def _check(self) -> None:
        if self.sampling not in SAMPLINGS:
            msg = f"sampling is one of {SAMPLINGS}, got {self.sampling!r}"
            raise PatchSizeError(msg)
        whole_number("samples_per_volume", self.samples_per_volume, least=1)
        if self.sampling == "grid" and self.samples_per_volume != 1:
            raise PatchSizeError(
                "samples_per_volume belongs to sampling='uniform'; a grid covers the volume once"
            )
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
        if max(self.size) == _LONGEST:
            raise PatchSizeError("a patch that keeps an axis takes no region=")
        whole = three("region", region, least=1)
        steps = usual_align(whole, self.size) if align is None else three("align", align, least=1)
        self.stream_names = (*self.stream_names, f"{self.stream_names[0]} region")
        return UniformRegion(whole, self.size, steps)

    def __iter__(self) -> Iterator[Sample]:
        """Yield the patches of one volume after another."""
        if self.sampling != "grid":
            for patch in self.visits():
                yield from map(patch, range(self.samples_per_volume))
            return
        for sample in self.parent:
            try:
                patches = self._grid(sample, pending_of(self, sample))
            except Exception as error:
                if not excused(self, sample, error):
                    raise add_location(error, self.origin, case_of(sample))  # noqa: B904
                continue
            for ordinal, place in patches:
                step = Step(place, self.stream_names[0], self.origin, shared=self._shared)
                yield stepped(self, sample, Adding([step]), ordinal=ordinal)

    def _drawing(
        self, sample: Any, steps: tuple[Adding, Adding | None] | None
    ) -> Callable[[int], Sample]:
        """Return what makes the patches of one volume, by their ordinals."""
        adding, placing = steps or self._adding(*self._ops(sample))
        # The region draws from the case, before there is an ordinal: one for all patches.
        visit = sample if placing is None else stepped(self, sample, placing)
        return lambda ordinal: stepped(self, visit, adding, ordinal=ordinal)

    def visits(self) -> Iterator[Callable[[int], Sample]]:
        """Yield for each volume what makes its ``samples_per_volume`` patches, by ordinal.

        So patches can be taken in any order while none is kept. A grid has no such numbers.
        """
        anywhere = (UniformPatch(self.asked, self.origin), self.region)
        steps = None if self._placed is not None else self._adding(*anywhere)
        for sample in self.parent:
            try:
                patch = self._drawing(sample, steps)
            except Exception as error:
                if not excused(self, sample, error):
                    raise add_location(error, self.origin, case_of(sample))  # noqa: B904
                continue
            yield patch

    def _adding(self, patch: SpatialOp, region: SpatialOp | None) -> tuple[Adding, Adding | None]:
        how: dict[str, Any] = {"shared": self._shared}
        adding = Adding([Step(patch, self.stream_names[0], self.origin, **how)])
        if region is None:
            return adding, None
        return adding, Adding([Step(region, self.stream_names[1], self.origin, **how)])

    def _ops(self, sample: Any) -> tuple[MaskedPatch | WeightedPatch, MaskedRegion | None]:
        """Return the ops for one sample: each has a mask or weights of its own."""
        pending_of(self, sample)  # refuses what is no sample with volumes
        assert self._placed is not None
        try:
            patch = self._placed(sample)
        except VoxpipeError as error:
            raise error.at(self.origin, sample.case)  # noqa: B904
        if self.region is None:
            return patch, None
        if isinstance(patch, WeightedPatch):
            patch = replace(patch, regional=True)
        return patch, MaskedRegion(self.region, patch)

    def prepare(self, progress: Callable[[int, int], None] | None = None) -> int:
        """Read the masks or weights of all cases now; return how many cases there are.

        Parameters
        ----------
        progress
            ``progress(done, total)`` in cases; by default a progress bar is shown.
        """
        if self._placed is None:
            return 0
        samples = list(self.parent)
        for sample in with_progress(samples, "masks", "case", progress):
            patch, _ = self._ops(sample)
            pending = pending_of(self, sample)
            if self.sampling == "grid" and isinstance(patch, MaskedPatch):
                patch.touched(pending.from_stored, self._grid_of(pending))
            else:
                patch.ready(pending.from_stored)
        return len(samples)

    def _grid(self, sample: Sample, pending: PendingPlan) -> list[tuple[int, FixedPatch]]:
        """Return the patches of a volume that stay, with their ordinals among all of them."""
        grid = self._grid_of(pending)
        patches = list(enumerate(grid.patches(pending.plan.shape)))
        if self._placed is None:
            return patches
        try:
            patch, _ = self._ops(sample)
            assert isinstance(patch, MaskedPatch)  # weights go with no grid
            stays = patch.touched(pending.from_stored, grid)
        except VoxpipeError as error:
            raise error.at(self.origin, sample.case)  # noqa: B904
        return patches if stays is None else [patches[n] for n in np.flatnonzero(stays)]

    def _grid_of(self, pending: PendingPlan) -> GridPatch:
        size = size_on(self.asked, pending.plan)
        overlap = [0 if n == 1 else o for n, o in zip(size, self.overlap, strict=True)]
        return GridPatch(size, overlap, self.origin)

    def __len__(self) -> int:
        """Return the number of patches; for a grid this reads the headers of all volumes, once.

        Of a manifest it opens no file, and of others no voxel.

        Raises
        ------
        TypeError
            The number of cases is not known; or, for a grid, how large a volume is, because that
            is drawn, follows from its voxels, or comes from functions of yours; or which
            patches touch the mask, until :meth:`prepare` or an epoch has read it.
        """
        if self.sampling == "grid":
            if self._counted is None:
                self._counted = count_planned(self.parent, self._count)
            return self._counted
        return length_of(self, self.parent) * self.samples_per_volume

    def _count(self, sample: Sample) -> int:
        """Return how many patches a grid has in a volume; reads no voxel."""
        pending = pending_of(self, sample)
        grid = self._grid_of(pending)
        if self._placed is None:
            return len(grid.patches(pending.plan.shape))
        patch, _ = self._ops(sample)
        assert isinstance(patch, MaskedPatch)  # weights are refused with a grid
        stays = patch.touched(pending.from_stored, grid)
        if stays is None:
            raise TypeError(
                "no len(): which patches touch the mask is known once it was read; run an epoch, "
                f"or keep the pipe of {self.origin} in a variable and call its prepare()"
            )
        return int(np.count_nonzero(stays))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_counted": None}  # a copy's parents may be others

    def settings(self) -> Any:
        """Return the arguments, with the name of a mask or of weights instead of the volume."""
        shown, named = self._arguments
        volumes = {"mask": self.mask, "weights": self.weights}
        names = {key: v.name for key, v in volumes.items() if isinstance(v, Volume)}
        return (shown, {**named, **names}) if names else self._arguments


def _limits(size: Any) -> tuple[int, ...]:
    each = size if isinstance(size, tuple) else (size,) * 3
    return tuple(_LONGEST if n is None else n for n in each)


# Of no axis of any volume.
_LONGEST = 2**31
