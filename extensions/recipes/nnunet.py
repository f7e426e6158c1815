"""nnU-Net's recipe: the chain that its plans describe, and its default augmentation."""

from __future__ import annotations

import math
import os
from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ...core import Sample
from ...core.call_site import shorten
from ...core.errors import SampleError
from ...core.validate import as_number, is_finite, is_integer, validate_int
from ...datapipes.case_lists import read_json
from ...datapipes.iter import from_nnunet
from ...datapipes.op_pipe import suggest_arguments
from ...intensity import Blur, Brightness, Contrast, Gamma, LowResolution
from ...storage.location import is_url, public_name
from ...volumes.catalog.manifest import folder_of

Axes = tuple[int, ...]
Scales = tuple[tuple[float, ...], ...]
ITERATIONS = 250
"""Batches of an epoch, nnU-Net's."""
OVERSAMPLE = 0.33
"""The share of a batch that is drawn about foreground, nnU-Net's."""
# From nnU-Net 2.8: where the longest edge of a patch is this many times its first one, it is
# augmented in its plane; 2-D patches more oblong than that are turned less.
_FLAT, _OBLONG = 3.0, 1.5
_TURN, _TURN_IN_PLANE, _TURN_OBLONG = 30.0, 180.0, 15.0
_REPLAN = "Give what nnUNetv2_plan_experiment wrote."
_CT = ("mean", "std", "percentile_00_5", "percentile_99_5")  # of the foreground of a channel
INSIDE = "inside"
"""The key of the mask of channels that are 0 outside of it."""


@suggest_arguments
def nnunet_augmentation(
    pipe: Any, *, degrees: float = _TURN, plane: bool = False, mirror: Axes | bool = (0, 1, 2)
) -> Any:
    """Return a chain of patches with nnU-Net's default augmentation, of version 2.8.

    Rotation, scaling, mirrors, noise, blur, brightness, contrast, low resolution and gamma, each
    with nnU-Net's probability and amounts: those of an image, and those of its channels. Values are
    to be normalized. ``docs/values.md`` has the pipes one by one.

    Parameters
    ----------
    pipe
        A chain of patches, ``lazy_patch`` included.
    degrees
        Patches are turned about each axis by up to this, either way.
    plane
        Whether patches are flat, and augmented in the plane of axes 1 and 2 only: nnU-Net's dummy
        2-D augmentation, with ``degrees=180``.
    mirror
        Axes that are mirrored, each in half of the patches; True for all, none for ``()``.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> patches = from_cases([{"image": np.zeros((9, 9, 9))}]).open_volume().lazy_patch(8)
    >>> sample = next(iter(nnunet_augmentation(patches)))
    >>> sorted(sample["image"].draws)[:3]
    ['flip', 'lazy_patch', 'noise']
    """
    as_number("degrees", degrees, least=0)
    turn = (-degrees, degrees)
    in_plane: dict[str, Any] = {"axes": (1, 2)} if plane else {}
    bend: dict[str, Any] = {"two_sided": True, "statistics_over": "patch", "keep_statistics": True}
    spread: dict[str, Any] = {"two_sided": True, "statistics_over": "patch", "keep_range": True}
    coarse = LowResolution((1, 2), by_inverse=True, p=0.5, **in_plane)
    pipe = pipe.rotate((turn, 0, 0) if plane else turn, space="voxel", p=0.2)
    pipe = pipe.zoom((1 / 1.4, 1 / 0.7), space="voxel", p=0.2, by_inverse=True, **in_plane)
    if mirror:
        pipe = pipe.flip((0, 1, 2) if mirror is True else mirror, p=0.5)
    return (
        pipe.noise((0, 0.1), p=0.1)
        .per_channel(Blur((0.5, 1.0), "voxel", per_axis=True, p=0.5), p=0.2)
        .per_channel(Brightness((0.75, 1.25), two_sided=True), p=0.15)
        .per_channel(Contrast((0.75, 1.25), **spread), p=0.15)
        .per_channel(coarse, p=0.25)
        .per_channel(Gamma((0.7, 1.5), **bend, invert=True), p=0.1)
        .per_channel(Gamma((0.7, 1.5), **bend), p=0.3)
    )


def nnunet(
    plans: str | os.PathLike[str] | Mapping[str, Any],
    dataset: str | os.PathLike[str],
    fold: int | str = 0,
    *,
    configuration: str = "3d_fullres",
    part: str = "train",
    windows: bool = False,
    splits: str | os.PathLike[str] | None = None,
    previous: str | os.PathLike[str] | None = None,
    iterations: int = ITERATIONS,
) -> Any:
    """Return the chain that nnU-Net's plans describe, from the raw files to batches.

    Axes, spacing, normalization of each channel, size of patch and batch, the share of foreground,
    augmentation, regions and the scales of deep supervision are those of the plans. Arrays have
    nnU-Net's axes, so a network of the plans takes them. Nothing is preprocessed: a patch is read
    from the raw files and interpolated once. The result is an ordinary chain:
    ``print(pipe)`` writes its code; ``docs/recipes.md`` lists differences to nnU-Net's own loader.

    Parameters
    ----------
    plans
        ``nnUNetPlans.json``, or its contents.
    dataset
        The raw dataset: its folder, or ``dataset.json`` in it.
    fold
        Which split; ``"all"`` for all cases.
    configuration
        Of the plans: ``"3d_fullres"``, ``"3d_lowres"``, ``"2d"``, ``"3d_cascade_fullres"``.
    part
        ``"train"``; ``"val"``, which is not augmented; or ``"test"``: the cases of ``imagesTs``,
        in windows.
    windows
        Whether batches hold whole cases in windows that overlap by half, without labels, in place
        of patches at random, for ``vp.predict(network, pipe, "{case}.nii.gz")``.
    splits
        ``splits_final.json``; by default in the folder of the plans, then in that of
        ``dataset.json``, else nnU-Net's split.
    previous
        For a cascade: the folder with the labels that the network before has predicted, a file
        for each case, called as its label.
    iterations
        Batches of an epoch, at least; each case gives as many patches.

    Raises
    ------
    SampleError
        The plans have no such configuration, or one that is not known here; or patches are to be
        drawn of a fold without cases.
    VolumeNotFound
        A file or a case is not there.
    """
    plan = Plan.read(plans, configuration)
    root = os.fspath(dataset)
    root = folder_of(root) if root.endswith(".json") else root
    facts = Facts.read(root)
    if splits is None and not isinstance(plans, Mapping) and not is_url(os.fspath(plans)):
        beside = Path(plans).with_name("splits_final.json")
        splits = beside if beside.exists() else None
    cases: Any = from_nnunet(root, fold=fold, part=part, splits=splits, separate_channels=True)
    is_whole, is_drawn = windows or part == "test", part == "train" and not windows
    patches = validate_int("iterations", iterations, least=1) * plan.batch
    count = 0 if is_whole else _count_for_each(cases, patches)
    if plan.has_previous:
        if previous is None:
            msg = f"{configuration!r} takes the predictions of the previous network"
            raise SampleError(msg, do="Give previous=, the folder with a label for each case.")
        ending = str(facts.document.get("file_ending", ".nii.gz"))
        cases = cases.map(_Previous(os.fspath(previous), ending))
    if is_whole:
        overlap = [n // 2 for n in plan.patch]
        pipe = raw_volumes(cases.map(_without_label), plan, labels=())
        pipe = pipe.lazy_patch(plan.patch, sampling="grid", overlap=overlap)
    else:
        pipe = raw_patches(cases, plan, facts, count=count, oversample=OVERSAMPLE)
    if is_drawn:
        pipe = nnunet_augmentation(pipe, **plan.augmentation)
    return batches_of(
        pipe,
        batch=plan.batch,
        scales=plan.scales if len(plan.scales) > 1 and not is_whole else (),
        regions=() if is_whole else facts.regions,
        previous=facts.foreground if plan.has_previous else (),
        mask_channels=plan.mask_channels,
        augment=is_drawn,
        drop_last=not is_whole,
    )


def _count_for_each(cases: Any, patches: int) -> int:
    """Return how many patches are drawn of each case; SampleError where there is no case."""
    if not len(cases):
        place = f"{cases.location}/splits_final.json" if cases.splits is None else cases.splits
        where = "dataset.json" if cases.fold == "all" else public_name(os.fspath(place))
        msg = f"fold {cases.fold} has no case for part={cases.part!r}, says {where}"
        raise SampleError(msg, do="Give another fold, or add cases to this one.")
    return math.ceil(patches / len(cases))


def raw_volumes(cases: Any, plan: Plan, *, labels: Sequence[str] = ("label",)) -> Any:
    """Return a chain of whole raw volumes, in the axes and the spacing of the plans, normalized.

    In ``cases`` each channel is a volume of its own; ``labels`` are the keys that are opened.
    """
    keys = [*plan.channels, *labels, *(["previous"] if plan.has_previous else [])]
    pipe = cases
    if plan.mask_channels:
        pipe = pipe.map(_with_inside)
        keys.append(INSIDE)
    others = keys[len(plan.channels) :]
    pipe = pipe.open_volume(labels=others, keys=keys).transpose(plan.axes)
    if plan.mask_channels:
        pipe = pipe.foreground_crop(INSIDE, fallback="whole")
    pipe = _normalize(pipe, plan)
    return pipe.spacing(plan.spacing, padding={"image": "constant"}, fill={"image": 0})


def raw_patches(cases: Any, plan: Plan, facts: Facts, *, count: int, oversample: float) -> Any:
    """Return a chain of patches that are not augmented, of raw files in the axes of the plans.

    ``count`` patches of each case make an epoch; the share ``oversample`` of a batch is drawn about
    foreground. ``cases`` are those of :func:`raw_volumes`.
    """
    pipe = raw_volumes(cases, plan)
    options: dict[str, Any] = {"samples_per_volume": count, "mask": "label"}
    if facts.ignore is not None:
        options["class_weights"] = dict.fromkeys(facts.foreground, 1.0)
    return pipe.lazy_patch(plan.patch, oversample=oversample, **options).shuffle_plans()


def batches_of(
    pipe: Any,
    *,
    batch: int,
    scales: Scales,
    regions: tuple[Axes, ...],
    previous: Sequence[int],
    mask_channels: Sequence[int],
    augment: bool,
    drop_last: bool = True,
) -> Any:
    """Return the batches of a chain of patches, as the network of the plans takes them.

    ``scales`` and ``regions`` are as of :class:`Plan` and :class:`Facts`; none for one output, and
    for classes. The classes ``previous`` become channels of the image, which ``augment`` changes as
    nnU-Net does. ``mask_channels`` are 0 where ``inside`` is, which does not stay.
    """
    if previous:
        pipe = _with_previous(pipe, previous, augment=augment)
    if regions:
        pipe = pipe.regions(regions, keys="label")
    pipe = pipe.batch_patches(batch, drop_last=drop_last)
    if mask_channels:
        how = {"mask": INSIDE, "channels": mask_channels, "keep_mask": False}
        pipe = pipe.fill_outside("image", **how)
    return pipe.deep_supervision(scales) if scales else pipe


def _normalize(pipe: Any, plan: Plan) -> Any:
    """Return the chain with each channel normalized by its scheme, and all of them in one image."""
    keys = plan.channels
    for key, scheme, has_mask in zip(keys, plan.schemes, plan.masks, strict=True):
        if scheme == "CTNormalization":
            of = plan.intensities[str(keys.index(key))]
            pipe = pipe.clamp(of["percentile_00_5"], of["percentile_99_5"], keys=key)
            pipe = pipe.normalize(of["mean"], of["std"], keys=key)
        elif scheme == "ZScoreNormalization":
            pipe = pipe.normalize(above=0, keys=key) if has_mask else pipe.normalize(keys=key)
        elif scheme == "RescaleTo01Normalization":
            pipe = pipe.rescale(keys=key)
        elif scheme == "RGBTo01Normalization":
            pipe = pipe.rescale(in_range=(0, 255), keys=key)
        elif scheme != "NoNormalization":
            msg = f"the plans normalize channel {keys.index(key)} by {scheme!r}"
            raise SampleError(msg, do="Write the chain by hand, with a pipe that does that.")
    return pipe.stack(keys) if len(keys) > 1 else pipe


def _with_previous(pipe: Any, foreground: Sequence[int], *, augment: bool) -> Any:
    """Return the chain with the labels of the network before as channels of the image."""
    pipe = pipe.one_hot(tuple(foreground), unknown="drop", keys="previous")
    if augment:
        how = {"p_channel": 0.5, "keys": "previous"}
        pipe = pipe.random_morphology((1, 8), p=0.4, **how).drop_component(0.15, p=0.2, **how)
    return pipe.stack(("image", "previous"))


def _without_label(sample: Sample) -> Sample:
    return sample.replace(data={key: thing for key, thing in sample.items() if key != "label"})


def _with_inside(sample: Sample) -> Sample:
    """Return a sample whose images are there again, to say where something is."""
    images = [place for key, place in sample.items() if key.startswith("image")]
    return sample.with_data(**{INSIDE: images if len(images) > 1 else images[0]})


@dataclass(frozen=True)
class _Previous:
    """Adds the label that the network before has predicted for a case."""

    folder: str
    ending: str

    def __call__(self, sample: Sample) -> Sample:
        return sample.with_data(previous=os.path.join(self.folder, f"{sample.case}{self.ending}"))


@dataclass(frozen=True)
class Facts:
    """The contents of ``dataset.json``."""

    document: Mapping[str, Any]

    @classmethod
    def read(cls, root: str) -> Facts:
        """Return the facts of ``dataset.json`` in a folder."""
        document = read_json(f"{root.rstrip('/')}/dataset.json")
        if not isinstance(document, Mapping):
            raise SampleError(f"dataset.json of {public_name(root)} is no mapping")
        labels = document.get("labels", {})
        every = labels.values() if isinstance(labels, Mapping) else [[]]
        rows = [one if isinstance(one, list) else [one] for one in every]
        if not all(row and _are(row, is_integer) and min(row) >= 0 for row in rows):
            msg = f"'labels' in dataset.json of {public_name(root)} are {shorten(labels)}"
            raise SampleError(msg, do='They are {"background": 0, "name": 1 or [1, 2], ...}.')
        return cls(document)

    @property
    def _labels(self) -> dict[str, Axes]:
        every = self.document.get("labels", {})
        return {name: tuple(one if isinstance(one, list) else [one]) for name, one in every.items()}

    @property
    def ignore(self) -> int | None:
        """The label of voxels that are not annotated."""
        return self._labels["ignore"][0] if "ignore" in self._labels else None

    @property
    def foreground(self) -> list[int]:
        """All labels but 0 and the one that is ignored."""
        classes = {n for name, labels in self._labels.items() for n in labels if name != "ignore"}
        return sorted(classes - {0})

    @property
    def regions(self) -> tuple[Axes, ...]:
        """The labels of each region, and the ignored one; none where there are classes."""
        classes = {k: v for k, v in self._labels.items() if k != "ignore" and set(v) != {0}}
        if all(len(labels) == 1 for labels in classes.values()):
            return ()
        last = () if self.ignore is None else ((self.ignore,),)
        return (*classes.values(), *last)


Rule = type | Callable[[Any], bool]


def _field(document: Any, name: str, rule: Rule = object, it: str = "") -> Any:
    """Return the value of a key of the plans; SampleError for one that is not as ``it`` says."""
    if not isinstance(document, Mapping) or name not in document:
        raise SampleError(f"the plans have no {name!r}", do=_REPLAN)
    value = document[name]
    if not _fits(value, rule):
        raise SampleError(f"{name!r} of the plans is {shorten(value)}, and not {it}", do=_REPLAN)
    return value


def _fits(value: Any, rule: Rule) -> bool:
    return isinstance(value, rule) if isinstance(rule, type) else rule(value)


def _are(value: Any, rule: Rule, counts: Sequence[int] = ()) -> bool:
    """Whether a value is a list, of one of these lengths, with entries of one kind."""
    is_list = isinstance(value, (list, tuple)) and (not counts or len(value) in counts)
    return is_list and all(_fits(one, rule) for one in value)


def _is_size(value: Any) -> bool:
    return is_integer(value) and value >= 1


def _is_order(value: Any) -> bool:
    return _are(value, is_integer) and sorted(value) == [0, 1, 2]


def _is_length(value: Any) -> bool:
    return is_finite(value) and value > 0


@dataclass(frozen=True)
class Plan:
    """A configuration of the plans, in nnU-Net's order of the axes."""

    plans: Mapping[str, Any]
    configuration: Mapping[str, Any]

    @classmethod
    def read(cls, plans: Any, name: str) -> Plan:
        """Return a configuration of plans, with its inherited values."""
        document = plans if isinstance(plans, Mapping) else read_json(os.fspath(plans))
        every = _field(document, "configurations", Mapping, "a mapping")
        names, chain = [name], []
        while names[-1]:
            if names[-1] not in every or names.count(names[-1]) > 1:
                msg = f"the plans have no configuration {names[-1]!r}"
                raise SampleError(msg, do=f"Give one of {', '.join(every) or 'none'}.")
            chain.append(_field(every, names[-1], Mapping, "a mapping"))
            parent = {"inherits_from": "", **chain[-1]}
            names.append(_field(parent, "inherits_from", str, "the name of a configuration"))
        whole: dict[str, Any] = dict(ChainMap(*chain))
        schemes = _field(whole, "normalization_schemes", partial(_are, rule=str), "names")
        is_flags = partial(_are, rule=bool)
        masks = _field(whole, "use_mask_for_norm", is_flags, "a list of true and false")
        if len(schemes) != len(masks) or not schemes:
            msg = f"configuration {name!r} has not as many use_mask_for_norm as "
            raise SampleError(f"{msg}normalization_schemes", do=_REPLAN)
        return cls(document, whole)

    @property
    def axes(self) -> Axes:
        """Which of (I, J, K) each axis of the plans is: those of SimpleITK's arrays, swapped."""
        axes = _field(self.plans, "transpose_forward", _is_order, "0, 1 and 2 in some order")
        return tuple(2 - n for n in axes)

    @property
    def patch(self) -> Axes:
        """Size of a patch; a plane has one voxel along the first axis."""
        return (1,) * (3 - len(self._edges)) + self._edges

    @property
    def _edges(self) -> Axes:
        are_sizes = partial(_are, rule=_is_size, counts=(2, 3))
        words = "two or three sizes in voxels"
        return tuple(_field(self.configuration, "patch_size", are_sizes, words))

    @property
    def batch(self) -> int:
        """Patches in a batch."""
        return int(_field(self.configuration, "batch_size", _is_size, "a number from 1"))

    @property
    def spacing(self) -> tuple[float | None, ...]:
        """Spacing of the resampled volumes, in millimetres; the distance of planes is kept."""
        count = len(self._edges)
        are_lengths = partial(_are, rule=_is_length, counts=(count,))
        words = f"{count} lengths above 0, one for each axis of patch_size"
        spacing = tuple(map(float, _field(self.configuration, "spacing", are_lengths, words)))
        return (None,) * (3 - len(spacing)) + spacing

    @property
    def schemes(self) -> list[str]:
        """How each channel is normalized."""
        return list(self.configuration["normalization_schemes"])

    @property
    def masks(self) -> list[bool]:
        """Whether only values other than 0 of each channel are normalized, and the rest stays 0."""
        return list(map(bool, self.configuration["use_mask_for_norm"]))

    @property
    def mask_channels(self) -> Axes:
        """The numbers of these channels."""
        return tuple(n for n, has_mask in enumerate(self.masks) if has_mask)

    @property
    def channels(self) -> list[str]:
        """The key of each channel."""
        count = len(self.schemes)
        return ["image"] if count == 1 else [f"image_{n:04d}" for n in range(count)]

    @property
    def intensities(self) -> Mapping[str, Mapping[str, float]]:
        """Statistics of the foreground of all cases, by channel."""
        name, facts = "foreground_intensity_properties_per_channel", {}
        every = _field(self.plans, name, Mapping, "a mapping")
        for number, scheme in enumerate(self.schemes):
            if scheme == "CTNormalization":
                own = _field(every, str(number), Mapping, "a mapping of statistics")
                facts[str(number)] = {key: _field(own, key, is_finite, "a number") for key in _CT}
                _field(own, "std", _is_length, "above 0")
        return facts

    @property
    def has_previous(self) -> bool:
        """Whether its input includes the prediction of another configuration."""
        return bool(self.configuration.get("previous_stage"))

    @property
    def scales(self) -> Scales:
        """Size of each output per axis, relative to the patch, without the coarsest output."""
        network = self.configuration
        for key in ("architecture", "arch_kwargs"):
            if key in network:
                network = _field(network, key, Mapping, "a mapping")
        name = "strides" if "strides" in network else "pool_op_kernel_sizes"
        are_strides = partial(_are, rule=_is_size, counts=(len(self._edges),))
        words = f"a list of {len(self._edges)} whole numbers for each stage of the network"
        strides = _field(network, name, lambda value: value and _are(value, are_strides), words)
        parts = 1 / np.cumprod(np.array(strides, float), axis=0)
        return tuple((1.0,) * (3 - len(one)) + tuple(one) for one in parts[:-1].tolist())

    @property
    def augmentation(self) -> dict[str, Any]:
        """The arguments of :func:`nnunet_augmentation`, by nnU-Net's rules."""
        edges = self._edges
        if len(edges) == 2:
            oblong = max(edges) / min(edges) > _OBLONG
            turn = _TURN_OBLONG if oblong else _TURN_IN_PLANE
            return {"degrees": turn, "plane": True, "mirror": (1, 2)}
        if max(edges) / edges[0] > _FLAT:
            return {"degrees": _TURN_IN_PLANE, "plane": True}
        return {}
