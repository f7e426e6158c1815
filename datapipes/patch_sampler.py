"""Cut patches out of volumes without reading them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ..core import CallSite, Sample
from ..core.call_site import shorten, warn
from ..core.errors import LikelyMistake, PatchSizeError, SampleError, missing_key_hint
from ..core.lru_cache import cached_property
from ..core.validate import as_count
from ..graph import Pipe
from ..spatial import (
    FixedPatch,
    GridPatch,
    MaskedPatch,
    MaskedRegion,
    SpatialOp,
    Step,
    UniformPatch,
    UniformRegion,
    WeightedPatch,
    refuse_changed,
    stored_labels,
    usual_align,
)
from ..spatial.ops.foreground_crop import Selection
from ..spatial.ops.op import Size, size_of, size_on, three, whole_number
from ..spatial.placing.sampling_mask import OTHER, Classes
from ..volumes import Volume
from .datapipe import (
    DataPipe,
    chained_form,
    length_of,
    locate_errors,
    note_error,
    stream_name,
    with_progress,
)
from .epoch import count_planned
from .item_numbers import EachItem, NumberedPatches, Visit
from .op_pipe import refuse_unknown_arguments
from .spatial import PipeSteps, add_steps, fill_plane, in_plane, named_volume, pending_of

# Longer than any axis of any volume.
_LONGEST = 2**31
SAMPLINGS = ("uniform", "grid")


@chained_form("lazy_patch")
class PatchSampler(DataPipe):
    """Yield patches of each volume: descriptions of where to cut, no voxels.

    Parameters
    ----------
    size
        Patch size (I, J, K) in voxels of the current grid; one number for all axes, of 2-D data in
        their plane. None keeps an axis: ``(32, 32, None)``. Two numbers are for 2-D data, (Y, X).
        Tensors then have two spatial axes, and ``overlap`` and ``region`` two numbers as well.
    samples_per_volume
        Patches drawn from each volume, with ``sampling="uniform"``. The number is fixed, or that of
        each case: the key of the number in the sample, or a function of the sample.
    sampling
        ``"uniform"``: each place where the patch fits is equally likely. ``"grid"``: as
        many patches as cover the volume, in order; the last ones are moved inward.
    overlap
        With ``"grid"``: voxels shared by neighbours: one number, for all axes along which a patch
        has more than one voxel; or three.
    region
        With ``"uniform"``: all patches of one visit to a volume are in one region of this size,
        which is drawn for the visit. Each place is as likely as without. Patches of one visit are
        closer to each other: chunks are decoded once for several of them. The loader's
        ``explain()`` recommends a size. One number or three, at least ``size + align - 1``.
    mask
        With ``"uniform"``: patches are drawn inside of it. With ``"grid"``: patches without it are
        left out, and with ``min_fraction`` those that hold less. Key of a label or boolean volume
        of the sample, or a ``Volume`` for all cases; any voxel that is not 0 is inside. An image,
        with its many values, is refused unless ``class_weights`` names labels. It may be coarser
        than the volumes and have a grid of its own. Then leave its key out of
        ``open_volume(keys=...)``, and give a path or ``Volume(array, affine=...)``.
    min_fraction
        With ``mask``: part of the patch that is inside, at least; of a grid exactly, else to within
        the cells (8 voxels, or a quarter of the patch) that faces of the patch cut.
    class_weights
        With ``mask``: how often a voxel of each label is in the middle, voxel ``n // 2`` of n,
        ``{0: 1, 2: 3}``; near a face the patch is moved inward. Labels that a volume lacks leave
        their part to the others; ``min_fraction`` is of the drawn one.
        ``"other"`` is for all other labels together. In a mask of several channels, one-hot or
        probabilities, each channel is a class, and its values say how likely each voxel is.
    oversample
        With ``mask``: the share of each batch that is drawn about foreground, as nnU-Net's
        ``oversample_foreground_percent``; the rest is anywhere. The foreground's class is drawn
        uniformly among the labels that the case has, 0 apart, or by ``class_weights``. The last
        patches of a batch are those, as many as ``n - round(n * (1 - oversample))`` of n. Patches
        that come in no batch of ``batch_patches()`` draw each whether they are one. A case without
        foreground gives patches anywhere.
    select_fn
        A function from the voxels (C, I, J, K) of ``mask`` to a mask of their shape.
        Slope and intercept are applied. It gets the whole volume, once for each content of a file
        and each code of the function: ``mask="image", select_fn=is_tissue``.
    level
        With ``select_fn``: the level of a pyramid that the function gets.
    weights
        With ``"uniform"``, and instead of ``mask``: how likely each voxel is to be the middle of a
        patch, voxel ``n // 2`` of n, wherever the patch fits. Key of a volume of the sample, or a
        ``Volume`` for all cases, on any grid. It has one channel of finite numbers from 0; their
        sum is free. Voxels too near a face have no part, unless no others weigh anything: then the
        patch is moved inward. On an axis with one place for the patch, every voxel counts.
    allow_smaller
        Whether a volume shorter than the patch gives a shorter patch, as in MONAI. By default the
        padding rule fills it to ``size``.
    fallback
        With ``mask`` or ``weights``, where they have no such place: ``"error"``, or a patch
        ``"anywhere"``.
    align
        Regions begin at multiples of this: give the chunk of the stored volumes. By default the
        largest divisor of ``region`` for which it is large enough.

    Notes
    -----
    A crop is *soft*: a later rotation reads its corners from the volume around the patch. A patch
    that is larger than the volume is centred on it, the padding rule fills the rest, and one
    warning reports it.

    A mask or map of weights is read once per volume, by the process that first plans with it. It is
    kept as runs of voxels of equal weight, for files also on disk; :meth:`prepare` does it for all
    cases now. Runs take a byte for 500 voxels of a mask, 1 MiB of a map of weights. If not all runs
    fit, the kept ones are spread evenly over all places. A drawn voxel always has its class, and
    its place is one of some ten thousand.

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

    cuts_patches: ClassVar[bool] = True  # later pipes do not get whole volumes
    choose: Callable[[Sample, list[int]], Sequence[int]] | None = None
    """Return the ordered patches of a grid, from a sample of the first one and all numbers.

    ``predict()`` leaves out finished ones."""

    @property
    def is_drawn(self) -> bool:
        """Whether places are drawn; those of a grid are the same in every epoch."""
        return self.sampling != "grid"

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Refuse unknown arguments in the words of other libraries too."""
        names = [*inspect.signature(cls.__init__).parameters][3:]
        refuse_unknown_arguments(cls.form_name, kwargs, ["size", *names])
        return super().__new__(cls, *args, **kwargs)

    def __init__(
        self,
        parent: Pipe,
        size: Size,
        *,
        samples_per_volume: int | str | Callable[[Sample], int] = 1,
        sampling: str = "uniform",
        overlap: Size = 0,
        region: Size | None = None,
        align: Size | None = None,
        mask: str | Volume | None = None,
        min_fraction: float = 0.0,
        class_weights: Mapping[Any, float] | None = None,
        oversample: float | None = None,
        select_fn: Callable[[NDArray[Any]], Any] | None = None,
        level: int = 0,
        weights: str | Volume | None = None,
        fallback: str = "error",
        allow_smaller: bool = False,
        name: str = "",
    ) -> None:
        super().__init__()
        self.parent = parent
        is_text = isinstance(samples_per_volume, str) and not samples_per_volume.isdecimal()
        varies = is_text or callable(samples_per_volume)
        # Key or function that gives the number of samples of each volume.
        self.samples_source: Any = samples_per_volume if varies else None
        self.samples_per_volume: Any = 1 if varies else samples_per_volume
        self.sampling = sampling
        self.stream_names = (stream_name(parent, name, self.form_name),)
        self._is_shared = bool(name)
        self.region: UniformRegion | None = None
        self.mask = mask
        self.weights = weights
        self.allow_smaller = allow_smaller
        self._length: int | None = None
        sizes: dict[str, Any] = {"size": size, "overlap": overlap, "region": region, "align": align}
        with locate_errors(self):
            plane = fill_plane(sizes, {"size": 1, "overlap": 0, "region": 1, "align": 1})
        if plane:
            self.parent = in_plane(parent, self.origin)
        with locate_errors(self, is_flat=bool(plane)):
            self.region = self._set_sizes(**{**sizes, **plane})
            if oversample is not None and self.region is not None:
                msg = "oversample says that the other patches lie anywhere, and region that all of "
                msg += "a visit lie beside each other"
                raise PatchSizeError(msg, do="Leave one of them out.")
            self._uniform = UniformPatch(self.given_size, self.origin, allow_smaller)
            options: dict[str, Any] = {"select_fn": select_fn, "level": level}
            options |= {"min_fraction": min_fraction, "class_weights": class_weights}
            options |= {"oversample": oversample}
            where = fallback, sampling, self.origin, allow_smaller
            self._template = _template(self.given_size, mask, weights, options, *where)
        self.oversample = oversample

    def _set_sizes(
        self, size: Size, overlap: Size, region: Size | None, align: Size | None
    ) -> UniformRegion | None:
        self.given_size = size_of("size", size)
        # Checks without a grid: None is as long as an axis may be.
        each = self.given_size if isinstance(self.given_size, tuple) else (self.given_size,) * 3
        whole = tuple(_LONGEST if n is None else n for n in each)
        self.size = three("size", whole, least=1)
        per_axis = three("overlap", overlap, least=0)
        if isinstance(overlap, int):  # one number leaves axes of one voxel alone
            i, j, k = (0 if s == 1 else overlap for s in self.size)
            per_axis = i, j, k
        self.overlap = per_axis
        self._check()
        return self._region(region, align)

    def _check(self) -> None:
        if self.sampling not in SAMPLINGS:
            raise PatchSizeError(f"sampling is one of {SAMPLINGS}, got {self.sampling!r}")
        whole_number("samples_per_volume", self.samples_per_volume, least=1)
        if self.sampling == "grid" and (self.samples_source or self.samples_per_volume != 1):
            msg = "samples_per_volume belongs to sampling='uniform'; a grid covers the volume once"
            raise PatchSizeError(msg)
        if any(o >= s for o, s in zip(self.overlap, self.size, strict=True)):
            msg = f"overlap must be smaller than the patch {self.size}, got {self.overlap}"
            raise PatchSizeError(msg)
        if self.sampling == "uniform" and any(self.overlap):
            msg = "overlap belongs to sampling='grid'; uniform patches overlap freely"
            raise PatchSizeError(msg)

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
        for sample in self.parent:
            try:
                visit = self._visit(sample)
            except Exception as error:
                note_error(self, sample, error)
            else:
                yield from map(visit.patch, range(visit.patches))

    def by_number(self, items: Any) -> Any:
        each = 0 if self.sampling == "grid" or self.samples_source else self.samples_per_volume
        if items is None:
            return None
        visits = EachItem(items, self._visit, self)
        if type(self) is PatchSampler and self._template is None:
            visits.cases = items.cases
        return NumberedPatches(visits, each)

    def _visit(self, sample: Any) -> Visit:
        """Return the number of patches of a volume, and a function that makes one."""
        if self.sampling == "grid":
            return self._visit_grid(sample, *self._grid(sample))
        patch, region = self._of_all
        if patch is None:  # the mask or the weights of a sample are its own
            op: Any = self._op_of(sample)
            if self.region is not None:
                op = replace(op, regional=True) if isinstance(op, WeightedPatch) else op
                region = self._step(MaskedRegion(self.region, op), 1)
            patch = self._step(op)
        # The region draws from the case, before there is an ordinal: one for all patches.
        start = sample if region is None else add_steps(self, region, sample)
        count = self._samples(sample) if self.samples_source else self.samples_per_volume
        return Visit(count, partial(add_steps, self, patch, start))

    @cached_property
    def _of_all(self) -> tuple[Any, Any]:
        """Return the steps that all volumes have: the patch and the region."""
        return self._step(None if self._template else self._uniform), self._step(self.region, 1)

    def _visit_grid(
        self, sample: Sample, patches: Sequence[FixedPatch], stays: NDArray[np.bool_] | None
    ) -> Visit:
        """Return the patches of a grid that stay; each counts those left out before it."""
        numbers: Any = range(len(patches)) if stays is None else np.flatnonzero(stays)
        order: Sequence[int] = numbers
        if self.choose is not None:  # also where none stays: the volume is there all the same
            first = patches[0].among(patches[0].window or {}, is_quiet=True)
            order = self.choose(add_steps(self, self._step(first), sample, 0), [*map(int, numbers)])

        def patch(place: int) -> Sample:
            n = int(order[place])
            window = {**(patches[n].window or {})}
            if len(numbers) < len(patches):
                at = int(np.searchsorted(numbers, n))
                before = n - (int(numbers[at - 1]) if at else -1) - 1
                after = len(patches) - n - 1 if at == len(numbers) - 1 else 0
                if before or after:
                    window["skips"] = [before, after]
            place_of = patches[n].among(window, is_quiet=self.choose is not None)
            return add_steps(self, self._step(place_of), sample, n)

        return Visit(len(order), patch)

    def _samples(self, sample: Any) -> int:
        """Return the number of patches of a volume."""
        rule = self.samples_source
        if isinstance(rule, str) and rule not in sample:
            msg = f"samples_per_volume={rule!r} names a key, and the sample has {', '.join(sample)}"
            raise SampleError(msg, do=missing_key_hint(rule, "Name one of these.")).at(self.origin)
        count: Any = sample[rule] if isinstance(rule, str) else rule(sample)
        count = int(count) if isinstance(count, str) and count.isdecimal() else count
        return whole_number(f"samples_per_volume={shorten(rule)}", count, least=0)

    def _step(self, op: SpatialOp | None, place: int = 0) -> Any:
        if op is None:
            return None
        return PipeSteps([Step(op, self.stream_names[place], self.origin, common=self._is_shared)])

    def _op_of(self, sample: Any) -> MaskedPatch | WeightedPatch:
        pending = pending_of(self, sample)  # refuses items other than samples with volumes
        template: Any = self._template
        is_masked = isinstance(template, MaskedPatch)
        selects = is_masked and template.selection is not None
        argument = "mask" if is_masked else "weights"
        kind = "label" if is_masked and not selects else "intensity"
        source: Any = self.mask if is_masked else self.weights
        if isinstance(source, Volume):
            pending.refuse_unplaced(source, argument)
            return replace(template, **{argument: source, "key": source.name})  # type: ignore[no-any-return]
        volume = named_volume(source, sample, argument, kind=kind)
        if selects or not is_masked:
            who = f"lazy_patch({'select_fn' if selects else 'weights'}=)"
            refuse_changed(sample[source], who, source)
        patch: Any = replace(template, **{argument: volume, "key": source})
        if is_masked and not selects:
            patch = replace(patch, mask_labels=_stored_classes(patch, sample[source]))
        return patch  # type: ignore[no-any-return]

    def prepare(self, progress: Callable[[int, int], None] | None = None) -> int:
        """Read the masks or weights of all cases now; return how many cases there are.

        Parameters
        ----------
        progress
            ``progress(done, total)`` in cases; by default a progress bar is shown.
        """
        if self._template is None:
            return 0
        samples = list(self.parent)
        for sample in with_progress(samples, "masks", "case", progress):
            with locate_errors(self, sample):
                if self.sampling == "grid":
                    self._grid(sample)
                else:
                    self._op_of(sample).table(pending_of(self, sample).from_stored)
        return len(samples)

    def _grid(self, sample: Sample) -> tuple[Sequence[FixedPatch], NDArray[np.bool_] | None]:
        """Return the patches of a volume, and which stay: None if this depends on voxels."""
        pending = pending_of(self, sample)
        size = size_on(self.given_size, pending.plan, allow_smaller=self.allow_smaller)
        overlap = [0 if n == 1 else o for n, o in zip(size, self.overlap, strict=True)]
        grid = GridPatch(size, overlap, self.origin)
        patches = grid.patches(pending.plan.shape)
        if self._template is None:
            return patches, np.ones(len(patches), np.bool_)
        patch = self._op_of(sample)
        assert isinstance(patch, MaskedPatch)  # weights go with no grid
        return patches, patch.touched_patches(pending.from_stored, grid)

    def __len__(self) -> int:
        """Return the number of patches; for a grid this reads the headers of all volumes, once.

        With a manifest it opens no file; it never reads a voxel.

        Raises
        ------
        TypeError
            The number of cases is not known. For a grid, the size of a volume is not known: it
            is drawn, follows from its voxels, or comes from functions of yours. Or a mask was
            not read yet, by :meth:`prepare` or an epoch.
        """
        if self.sampling == "grid" or self.samples_source:
            if self._length is None:
                self._length = count_planned(self.parent, self._count)
            return self._length
        return length_of(self, self.parent) * int(self.samples_per_volume)

    def _count(self, sample: Sample) -> int:
        """Return how many patches a volume has; reads no voxel."""
        with locate_errors(self, sample):
            if self.samples_source:
                return self._samples(sample)
            _, stays = self._grid(sample)
        if stays is None:
            msg = "no len(): which patches touch the mask is known once it was read; run an epoch, "
            msg += f"or keep the pipe of {self.origin} in a variable and call its prepare()"
            raise TypeError(msg)
        return int(np.count_nonzero(stays))

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_length": None}  # a copy's parents may be others

    def settings(self) -> Any:
        """Return the arguments, with the name of a mask or of weights instead of the volume."""
        args, kwargs = self._arguments
        volumes = {"mask": self.mask, "weights": self.weights}
        names = {key: v.name for key, v in volumes.items() if isinstance(v, Volume)}
        return (args, {**kwargs, **names})


def _stored_classes(patch: MaskedPatch, thing: Any) -> Classes:
    """Return the stored labels of each class of a mask, where they are others."""
    who = "lazy_patch(mask=)"
    if not patch.classes:
        stored_labels(thing, (), who, patch.key)
        return ()
    as_stored = tuple(label if label == OTHER else (label,) for label in patch.classes)
    classes = tuple(
        one if one == OTHER else stored_labels(thing, one, who, patch.key) for one in as_stored
    )
    return () if classes == as_stored else classes


def _template(
    size: Sequence[int],
    mask: Any,
    weights: Any,
    options: Mapping[str, Any],
    fallback: str,
    sampling: str,
    origin: CallSite,
    allow_smaller: bool = False,
) -> MaskedPatch | WeightedPatch | None:
    """Return the op of a pipe with these arguments, of no volume; None where none says where."""
    # ``options`` has the arguments that belong to a mask.
    usual: dict[str, Any] = {"min_fraction": 0, "class_weights": {}, "oversample": None}
    usual |= {"select_fn": None, "level": 0}
    names = [name for name, one in options.items() if one is not None and one != usual[name]]
    op_class: type[MaskedPatch] | type[WeightedPatch]
    if weights is not None:
        for name in (*(() if mask is None else ("mask",)), *names):
            msg = f"{name} selects the voxels inside, which count alike; weights= says how "
            do = "To draw inside a mask only, write 0 into the weights of all else."
            raise PatchSizeError(f"{msg}often each is drawn. Give one of them.", do=do)
        if sampling != "uniform":
            raise PatchSizeError("weights belongs to sampling='uniform'; a grid covers everything")
        op_class, argument, volume, settings = WeightedPatch, "weights", weights, {}
    else:
        names += ["fallback"] if fallback != "error" else []
        drawing = [name for name in names if name not in ("min_fraction", "select_fn", "level")]
        if mask is None:
            if names:
                do = 'Give mask= too: the key of a label, e.g. "label".'
                raise PatchSizeError(f"{names[0]} belongs to mask=", do=do)
            return None
        if drawing and sampling != "uniform":
            msg = f"{drawing[0]} belongs to sampling='uniform': a grid draws nothing"
            raise PatchSizeError(msg, do="Leave it out: patches of the grid that touch mask= stay.")
        op_class, argument, volume, settings = MaskedPatch, "mask", mask, dict(options)
        function, level = settings.pop("select_fn"), as_count("level", settings.pop("level"))
        if function is not None:
            settings["selection"] = replace(Selection.of("select_fn", function), level=level)
        if ("level" in names) > ("select_fn" in names):
            raise PatchSizeError("level belongs to select_fn=, whose volume it selects")
        if {"select_fn", "class_weights"} <= {*names}:
            msg = "select_fn makes a mask without labels, and class_weights draws by labels"
            raise PatchSizeError(msg, do="Leave one of them out.")
    if not isinstance(volume, (str, Volume)):
        msg = f"{argument} is a key of the sample or a Volume, got {type(volume).__name__}"
        raise PatchSizeError(msg, do="Write vp.Volume(array, affine=...) around an array.")
    settings |= {"fallback": fallback, "origin": origin, "allow_smaller": allow_smaller}
    # One op without a volume: it refuses wrong arguments at the user's line.
    patch = op_class(size, SimpleNamespace(token=""), **settings)
    if isinstance(patch, MaskedPatch):
        _check_background(patch, origin)
    return patch


def _check_background(patch: MaskedPatch, origin: CallSite) -> None:
    """Refuse the background as a class, or warn of it, if patches anywhere are meant."""
    weights = dict(patch.class_weights)
    background = weights.get(0, 0.0)
    if not background:
        return
    if patch.oversample is not None:
        msg = "oversample draws the other patches anywhere, and class_weights lists 0: the voxels "
        msg += "in the middle of patches about foreground would be background"
        raise PatchSizeError(msg, do="Leave 0 out of class_weights.")
    others = sum(weights.values()) - background
    # MONAI's pos and neg are as much by default; nnU-Net's two thirds are more.
    if others < background and others:
        share = others / (others + background)
        text = (
            f"class_weights={{0: {background:g}, ...}} puts a voxel of label 0 into the middle of "
            f"{1 - share:.0%} of the patches, which then avoid the others: that is not a patch "
            f"anywhere, as nnU-Net draws its rest\n  at {origin}\n"
            f"  Write oversample={share:.2g} in its place, without 0 in class_weights; or leave it "
            "if it is meant, and filter this warning."
        )
        warn(text, LikelyMistake, origin)
