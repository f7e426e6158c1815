"""What stands for nnU-Net's loader and trainer, and what it has preprocessed of a few cases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import blosc2
import numpy as np

from voxpipe.extensions.bridges.nnunet_loaders import Batches, preprocessed_patches, with_targets
from voxpipe.extensions.recipes import nnunet_augmentation

SHAPE = (10, 12, 14)
SIZE = (4, 6, 8)
CASES = ["case_0", "case_1", "case_2"]
BATCH = 3
FORCED = 2  # the last of a batch
CENTRE = (5, 6, 7)


def arrays_of(number: int) -> tuple[Any, Any]:
    """Return image and label of a case as nnU-Net keeps them: 0 and -1 where nothing is."""
    random = np.random.default_rng(number)
    image = random.normal(size=(1, *SHAPE)).astype(np.float32)
    label = random.integers(0, 3, (1, *SHAPE)).astype(np.int16)
    image[:, :2], label[:, :2] = 0, -1
    return image, label


def write(array: Any, place: Path) -> None:
    place.parent.mkdir(exist_ok=True)
    blosc2.asarray(np.ascontiguousarray(array), urlpath=str(place), mode="w")


class Drawer:
    """Draws as nnU-Net's loader does, from NumPy's global generator; ends hang over the faces."""

    def __init__(self, folder: Path, earlier: Path | None = None) -> None:
        self.indices = CASES
        self._data = SimpleNamespace(
            source_folder=str(folder),
            folder_with_segs_from_previous_stage=None if earlier is None else str(earlier),
            load_case=self._load,
        )
        self.loaded: list[str] = []

    def _load(self, case: str) -> tuple[Any, Any, Any, dict[str, Any]]:
        self.loaded.append(case)
        return *arrays_of(CASES.index(case)), None, {"class_locations": {1: [(0, *CENTRE)]}}

    def get_indices(self) -> Any:
        return np.random.choice(self.indices, BATCH)

    def get_do_oversample(self, position: int) -> bool:
        return position == FORCED

    def get_bbox(self, shape: Any, is_forced: bool, locations: Any) -> tuple[Any, Any]:
        assert tuple(shape) == SHAPE
        middle = locations[1][0][1:] if is_forced else np.random.randint(0, shape)
        start = [m - s // 2 for m, s in zip(middle, SIZE, strict=True)]
        return start, [a + s for a, s in zip(start, SIZE, strict=True)]


def trainer_of(**changes: Any) -> Any:
    """Return a stand-in for nnU-Net's trainer; attributes of its parts by their own names."""
    configuration = {"patch_size": list(SIZE), "use_mask_for_norm": [False]}
    labels = {
        "has_regions": False,
        "foreground_labels": [1, 2],
        "foreground_regions": None,
        "has_ignore_label": False,
        "ignore_label": None,
    }
    trainer = {
        "batch_size": BATCH,
        "oversample_foreground_percent": 0.33,
        "probabilistic_oversampling": False,
        "is_cascaded": False,
        "scales": [[1.0, 1.0, 1.0], [1.0, 0.5, 0.5]],
    }
    for name, value in changes.items():
        next(part for part in (configuration, labels, trainer) if name in part)[name] = value
    scales = trainer.pop("scales")
    return SimpleNamespace(
        configuration_manager=SimpleNamespace(**configuration),
        label_manager=SimpleNamespace(**labels),
        _get_deep_supervision_scales=lambda: scales,
        **trainer,
    )


def batches_of(
    drawer: Any, trainer: Any, *, workers: int = 0, seed: int = 1, augment: bool = False
) -> Iterator[Any]:
    """Yield batches without end; workers end with the generator."""
    patches = preprocessed_patches(drawer, trainer)
    if augment:
        patches = nnunet_augmentation(patches)
    loader = Batches(
        with_targets(patches, trainer, augment=augment),
        workers,
        seed,
        is_plane=len(trainer.configuration_manager.patch_size) == 2,
        has_regions=trainer.label_manager.has_regions,
    )
    try:
        yield from loader
    finally:
        loader.close()


def first(count: int, *args: Any, **options: Any) -> list[Any]:
    batches = batches_of(*args, **options)
    result = [next(batches) for _ in range(count)]
    batches.close()
    return result
