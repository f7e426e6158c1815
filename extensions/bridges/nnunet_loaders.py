"""Batches for nnU-Net's trainer: its cases and places, our reading, augmentation and workers.

nnU-Net's own data loader draws the cases and the places of patches, so that oversampling, ignored
labels and volumes smaller than a patch follow its rules. Its other steps are replaced: a patch is
described here, then read and augmented where its batch is made. The trainers themselves are in
``nnunet_trainers``, which alone needs nnU-Net.
"""

from __future__ import annotations

import math
import os
import secrets
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any

import numpy as np
import torch

from ...core import Sample, Stream
from ...core.errors import NotOffered, RanksAlike, VolumeNotFound
from ...core.lru_cache import LRUCache
from ...dataloader2.dataloader2 import DataLoader2
from ...datapipes.datapipe import DataPipe, stream_name
from ...datapipes.iter import from_cases, from_nnunet
from ...datapipes.spatial import PipeSteps, add_steps
from ...graph import Pipe
from ...reading_services import MultiProcessingReadingService
from ...reading_services.pipe_runner import seeded_globals
from ...spatial import PlacedPatch, Policy, Step
from ..recipes.nnunet import INSIDE, Facts, Plan, batches_of, raw_patches

_OUTSIDE = -1  # nnU-Net's preprocessed label where an image is 0
# Memory of nnU-Net's tables of voxels by class; tables beyond it are read again.
_LOCATION_BYTES = 256 * 1024**2
# Batches whose places are drawn at once: to seed NumPy's generator takes longer than to draw.
_DRAWN_AT_ONCE = 8
# Batches of a pass over the raw files, after which the order is drawn anew: workers wait then.
_RAW_BATCHES = 1000
_SEED_BITS = 32


class PlacedPatches(DataPipe):
    """Cut endless patches out of nnU-Net's preprocessed cases, at nnU-Net's places.

    All patches share one step; each has its own origin. ``drawer`` is nnU-Net's loader, which
    draws cases and places, batch by batch.
    """

    cuts_patches = True
    form_name = "placed_patches"

    def __init__(self, parent: Pipe, size: Sequence[int], drawer: Any) -> None:
        super().__init__()
        self.parent, self.drawer = parent, drawer
        self.stream_names = (stream_name(parent, "", "lazy_patch"),)
        self._patch = PlacedPatch((0, 0, 0), size, self.origin)
        self._steps = PipeSteps([Step(self._patch, self.stream_names[0], self.origin)])
        self._facts: LRUCache[_CaseFacts] = LRUCache(_LOCATION_BYTES, lambda facts: facts.nbytes)

    def __iter__(self) -> Iterator[Sample]:
        cases = {sample.case: sample for sample in self.parent}
        if not cases:
            raise VolumeNotFound("nnU-Net's split names no case", do="Look at splits_final.json.")
        seed, epoch = next((one.seed, one.epoch) for one in cases.values())
        for block in count():
            draw = Stream(seed, epoch, (block,), self.form_name).integer()
            with seeded_globals(draw):  # nnU-Net draws from NumPy's global generator
                places = [place for _ in range(_DRAWN_AT_ONCE) for place in self._of_batch()]
            for number, (case, place) in enumerate(places, block * len(places)):
                yield add_steps(self, self._steps, cases[case], number, place=place)

    def _of_batch(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield the case of each patch of a batch, and where it begins."""
        for position, case in enumerate(self.drawer.get_indices()):
            is_forced = self.drawer.get_do_oversample(position)
            facts = self._facts.get_or(case, partial(_CaseFacts, self.drawer, case))
            start, _ = self.drawer.get_bbox(facts.shape, is_forced, facts.locations)
            yield str(case), tuple(map(int, start))

    def settings(self) -> Any:
        """Return the size of a patch, and nnU-Net's settings of its draws."""
        names = ("batch_size", "oversample_foreground_percent", "probabilistic_oversampling")
        drawn_by = [getattr(self.drawer, name, None) for name in names]
        return self._patch.size, drawn_by, _DRAWN_AT_ONCE

    def describe(self) -> str:
        return f"placed_patches({self._patch.describe()})"


class _CaseFacts:
    """nnU-Net's facts of a case: its shape, and the voxels of its classes."""

    def __init__(self, drawer: Any, case: str) -> None:
        # nnU-Net unpickles its own files.
        image, _, _, properties = drawer._data.load_case(case)
        self.shape = tuple(map(int, image.shape[1:]))
        self.locations = properties["class_locations"]
        self.nbytes = sum(np.asarray(voxels).nbytes for voxels in self.locations.values())


def preprocessed_patches(drawer: Any, trainer: Any) -> Any:
    """Return an endless chain of patches of nnU-Net's preprocessed cases, not augmented.

    ``drawer`` is nnU-Net's ``nnUNetDataLoader``, made for patches of the size of the plans. A case
    without its ``.b2nd`` raises ``VolumeNotFound``.
    """
    dataset = drawer._data
    folder = str(dataset.source_folder)
    keys = {"image": (folder, ".b2nd"), "label": (folder, "_seg.b2nd")}
    if mask_channels_of(trainer):
        keys[INSIDE] = keys["label"]
    if trainer.is_cascaded:
        keys["previous"] = (str(dataset.folder_with_segs_from_previous_stage), ".b2nd")
    cases = [
        {"case": str(case), **{key: f"{start}/{case}{end}" for key, (start, end) in keys.items()}}
        for case in drawer.indices
    ]
    for place in (place for case in cases for key, place in case.items() if key in keys):
        if not os.path.exists(place):
            raise VolumeNotFound(f"there is no {place}", do="Preprocess anew by nnU-Net >= 2.6.")
    policies = {"image": Policy("linear", "constant")}
    policies |= {key: Policy("nearest", "constant") for key in keys if key != "image"}
    if INSIDE in keys:
        policies[INSIDE] = Policy("nearest", "constant", fill=_OUTSIDE)
    labels = [key for key in keys if key != "image"]
    volumes: Any = from_cases(cases).open_volume(labels=labels, policies=policies)
    size = tuple(map(int, trainer.configuration_manager.patch_size))
    patches: Any = PlacedPatches(volumes, (1,) * (3 - len(size)) + size, drawer)
    patches = patches.remap_labels({_OUTSIDE: 0}, keys="label")
    return (
        patches.remap_labels({_OUTSIDE: 0}, unknown=1, keys=INSIDE) if INSIDE in keys else patches
    )


def raw_chains(trainer: Any, folder: str) -> tuple[Any, Any]:
    """Return chains of patches of the raw files, for training and validation, not augmented.

    The trainer is initialized, and ``folder``, ``nnUNet_raw``, holds the raw datasets. The second
    network of a cascade raises ``NotOffered``, as does probabilistic oversampling.
    """
    if trainer.is_cascaded:
        msg = "predictions of the previous network are on the grid of preprocessed cases"
        raise NotOffered(msg, do="Train this configuration with nnUNetTrainerVoxpipe.")
    if trainer.probabilistic_oversampling:
        msg = "patches of raw files are about foreground by their place in the batch"
        raise NotOffered(msg, do="Use nnUNetTrainerVoxpipe for probabilistic oversampling.")
    root = os.path.join(folder, trainer.plans_manager.dataset_name)
    plan = Plan.read(trainer.plans_manager.plans, trainer.configuration_name)
    facts = Facts(trainer.dataset_json)
    every = {case["case"]: case for case in from_nnunet(root, separate_channels=True).cases}
    chains = []
    for names in trainer.do_split():
        missing = [name for name in names if name not in every]
        if missing:
            raise VolumeNotFound(f"{root} has no case {missing[0]}, which the split names")
        batches = math.ceil(_RAW_BATCHES * trainer.batch_size / len(names))
        share = trainer.oversample_foreground_percent
        cases = from_cases([every[name] for name in names])
        chains.append(raw_patches(cases, plan, facts, count=batches, oversample=share))
    return chains[0], chains[1]


def augmentation_of(trainer: Any) -> dict[str, Any]:
    """Return the arguments of ``nnunet_augmentation`` as nnU-Net chooses them for a trainer."""
    # It also sets the axes that the trainer may mirror in prediction.
    turn, is_flat, _, axes = trainer.configure_rotation_dummyDA_mirroring_and_inital_patch_size()
    missing = 3 - len(trainer.configuration_manager.patch_size)
    return {
        "degrees": math.degrees(turn[1]),
        "plane": bool(is_flat or missing),
        "mirror": tuple(axis + missing for axis in axes or ()),
    }


def with_targets(pipe: Any, trainer: Any, *, augment: bool) -> Any:
    """Return the batches of patches, with the targets that the trainer's network has.

    ``pipe`` is of :func:`preprocessed_patches` or :func:`raw_chains`; ``augment`` says whether
    channels of earlier labels are changed.
    """
    labels = trainer.label_manager
    regions: tuple[Any, ...] = ()
    if labels.has_regions:
        regions = (*labels.foreground_regions, *([labels.ignore_label] * labels.has_ignore_label))
    scales = trainer._get_deep_supervision_scales() or ()
    return batches_of(
        pipe,
        batch=trainer.batch_size,
        scales=tuple((1.0,) * (3 - len(one)) + tuple(map(float, one)) for one in scales),
        regions=regions,
        previous=labels.foreground_labels if trainer.is_cascaded else (),
        mask_channels=mask_channels_of(trainer),
        augment=augment,
    )


def mask_channels_of(trainer: Any) -> tuple[int, ...]:
    """Return the channels whose normalization keeps 0 outside of a mask."""
    masks = trainer.configuration_manager.use_mask_for_norm or ()
    return tuple(channel for channel, has_mask in enumerate(masks) if has_mask)


def seeds_of(seed: int | None, rank: int) -> tuple[int, tuple[int, int]]:
    """Return the seed of a run, drawn where there is none, and those of its two loaders."""
    seed = secrets.randbits(_SEED_BITS) if seed is None else seed
    training, validation = np.random.SeedSequence([seed, rank]).generate_state(2).tolist()
    return seed, (training, validation)


class Batches(Iterator[dict[str, Any]]):
    """Batches without end, under the names and in the forms that nnU-Net's loop asks for.

    ``chain`` yields batches with ``image`` and ``label``; ``num_workers`` processes make them, or
    this one for 0. With ``is_plane`` patches have one voxel along the first axis, which the network
    lacks. With ``has_regions`` targets are boolean channels.
    """

    def __init__(
        self, chain: Any, num_workers: int, seed: int, *, is_plane: bool, has_regions: bool
    ) -> None:
        service = MultiProcessingReadingService(num_workers, persistent_workers=True)
        self.loader = DataLoader2(chain, None, service, seed=seed)
        self.is_plane, self.has_regions = is_plane, has_regions
        self._batches: Iterator[Any] = iter(())

    def __next__(self) -> dict[str, Any]:
        """Return ``data`` (B, C, ...) float32, ``target``, one or a list, and ``keys``."""
        batch = next(self._batches, None)
        if batch is None:
            self._batches = iter(self.loader)
            with warnings.catch_warnings():
                # Each rank draws by a seed of its own, as nnU-Net's do.
                warnings.simplefilter("ignore", RanksAlike)
                batch = next(self._batches)
        return {
            "data": self._in_plane(batch["image"]),
            "target": self._target(batch["label"]),
            "keys": [meta["case"] for meta in batch["meta"]],
        }

    def _target(self, label: Any) -> Any:
        if isinstance(label, list):
            return [*map(self._target, label)]
        label = self._in_plane(label)
        return label.view(torch.bool) if self.has_regions else label

    def _in_plane(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.squeeze(-3) if self.is_plane else tensor

    def close(self) -> None:
        self.loader.shutdown()
