"""nnU-Net's recipe: blosc2 files, batchgeneratorsv2, and workers that make whole batches.

Run by throughput.py in an environment with batchgeneratorsv2 and blosc2, once with ``--prepare``
(volumes to ``.b2nd``, as nnU-Net's preprocessing leaves them: normalised float32 image, int8
label) and then to measure. Prints one line of JSON.

The recipe: per sample open both files, read a cube with a margin for the rotation (partial reads,
mapped, one thread), ``SpatialTransform`` and ``MirrorTransform``; ``NonDetMultiThreadedAugmenter``
hands over whichever batch is ready. Left out to nnU-Net's advantage: oversampling of foreground
and the pickle of voxels that goes with it.

Two works: ``readme`` turns and zooms every patch, as the README's chain does; ``nnunet`` has the
transforms and probabilities of nnU-Net 2.8's ``get_training_transforms`` for isotropic patches,
deep supervision included. By default it samples every label apart and linearly; in the variant
``nearest labels`` it does not, nor does voxpipe.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import blosc2
import numpy as np
import steady
import torch
from b2nd import preprocessed, write
from batchgenerators.dataloading.data_loader import DataLoader
from batchgenerators.dataloading.nondet_multi_threaded_augmenter import (
    NonDetMultiThreadedAugmenter,
)
from batchgeneratorsv2.transforms.intensity.brightness import MultiplicativeBrightnessTransform
from batchgeneratorsv2.transforms.intensity.contrast import BGContrast, ContrastTransform
from batchgeneratorsv2.transforms.intensity.gamma import GammaTransform
from batchgeneratorsv2.transforms.intensity.gaussian_noise import GaussianNoiseTransform
from batchgeneratorsv2.transforms.noise.gaussian_blur import GaussianBlurTransform
from batchgeneratorsv2.transforms.spatial.low_resolution import SimulateLowResolutionTransform
from batchgeneratorsv2.transforms.spatial.mirroring import MirrorTransform
from batchgeneratorsv2.transforms.spatial.spatial import SpatialTransform
from batchgeneratorsv2.transforms.utils.compose import ComposeTransforms
from batchgeneratorsv2.transforms.utils.deep_supervision_downsampling import (
    DownsampleSegForDSTransform,
)
from batchgeneratorsv2.transforms.utils.random import RandomTransform
from batchgeneratorsv2.transforms.utils.remove_label import RemoveLabelTansform
from threadpoolctl import threadpool_limits

KEYS = ("image", "label")
WAIT = 0.002
"""Seconds between two looks at the queues: nnU-Net's setting."""


def prepare(job: dict[str, Any]) -> list[dict[str, str]]:
    """Write every case as two ``.b2nd`` files and return their paths."""
    import nibabel

    folder = Path(job["folder"])
    folder.mkdir(exist_ok=True)
    prepared = []
    for number, case in enumerate(job["cases"]):
        paths = {key: str(folder / f"case{number}_{key}.b2nd") for key in KEYS}
        for key in KEYS:
            array = np.asarray(nibabel.load(case[key]).dataobj)
            write(preprocessed(array, key), paths[key], job["size"])
        prepared.append(paths)
    return prepared


@dataclass(frozen=True)
class Work:
    """What is done to a patch."""

    angle: float
    """The largest rotation, in radians."""
    least_zoom: float
    """What the margin is wide enough for."""
    probability: float
    """Of a rotation, and of a zoom."""
    zoom: tuple[float, float]
    outside: int
    """The label beyond the volume."""

    def initial_size(self, size: int) -> int:
        """Return the edge of the cube that is read: turned about one axis, and zoomed out."""
        return int(size * (math.cos(self.angle) + math.sin(self.angle)) / self.least_zoom)

    def spatial(self, size: int, labels: str) -> SpatialTransform:
        """Return the transform that moves voxels; ``labels`` is how they are sampled."""
        outside = {"border_mode_seg": "constant", "padding_value_seg": self.outside}
        return SpatialTransform(
            (size,) * 3,
            patch_center_dist_from_border=0,
            random_crop=False,
            p_rotation=self.probability,
            rotation=(-self.angle, self.angle),
            p_scaling=self.probability,
            scaling=self.zoom,
            p_synchronize_scaling_across_axes=1,
            bg_style_seg_sampling=False,
            mode_seg=labels,
            **(outside if self.outside else {}),
        )


WORKS = {
    "readme": Work(math.radians(15), 0.9, 1, (0.9, 1.1), 0),
    # Of get_training_transforms, and of what it takes for the margin.
    "nnunet": Work(math.radians(30), 0.85, 0.2, (0.7, 1.4), -1),
}


def values() -> list[Any]:
    """Return what nnU-Net's default does to the values of a patch."""

    def channel(**more: Any) -> dict[str, Any]:
        return {"synchronize_channels": False, **more}

    def gamma(probability: float, inverted: int) -> Any:
        bend = GammaTransform(
            BGContrast((0.7, 1.5)), inverted, **channel(p_per_channel=1, p_retain_stats=1)
        )
        return RandomTransform(bend, probability)

    factors = BGContrast((0.75, 1.25))
    coarse = channel(synchronize_axes=True, ignore_axes=None, p_per_channel=0.5)
    soft = channel(synchronize_axes=False, p_per_channel=0.5, benchmark=True)
    return [
        RandomTransform(GaussianNoiseTransform((0, 0.1), 1, True), 0.1),
        RandomTransform(GaussianBlurTransform((0.5, 1.0), **soft), 0.2),
        RandomTransform(
            MultiplicativeBrightnessTransform(factors, **channel(p_per_channel=1)), 0.15
        ),
        RandomTransform(ContrastTransform(factors, True, **channel(p_per_channel=1)), 0.15),
        RandomTransform(SimulateLowResolutionTransform((0.5, 1), **coarse), 0.25),
        gamma(0.1, 1),
        gamma(0.3, 0),
    ]


class Batches(DataLoader):
    """Random cubes, augmented to batches; one object per worker."""

    def __init__(self, job: dict[str, Any]) -> None:
        super().__init__(job["prepared"], job["batch"], job["workers"], None, False, False, True)
        work = WORKS[job["work"]]
        self._size, self._margin = job["size"], work.initial_size(job["size"])
        labels = "bilinear" if job["variant"] == "default" else "nearest"
        spatial, mirror = work.spatial(self._size, labels), MirrorTransform((0, 1, 2))
        middle = values() if job["work"] == "nnunet" else []
        last: list[Any] = [RemoveLabelTansform(-1, 0)] if work.outside else []
        self._scales = job["scales"]
        if self._scales:
            last.append(DownsampleSegForDSTransform(self._scales))
        self._outside = work.outside
        self._transform = ComposeTransforms([spatial, *middle, mirror, *last])

    def generate_train_batch(self) -> dict[str, Any]:
        images = torch.empty((self.batch_size, 1, *(self._size,) * 3))
        labels: list[Any] = []
        with torch.no_grad(), threadpool_limits(limits=1, user_api=None):
            for number in range(self.batch_size):
                case = self._data[np.random.randint(len(self._data))]
                image, label = self._cubes(case)
                done = self._transform(image=image, segmentation=label)
                images[number] = done["image"]
                labels.append(done["segmentation"] if self._scales else [done["segmentation"]])
        return {"image": images, "label": [torch.stack(same) for same in zip(*labels)]}  # noqa: B905

    def _cubes(self, case: dict[str, str]) -> Iterator[Any]:
        opened = [
            blosc2.open(case[key], mode="r", dparams={"nthreads": 1}, mmap_mode="r") for key in KEYS
        ]
        outside = (self._margin - self._size) // 2
        # As far outside as the margin reaches: the patch itself always lies inside.
        start = [
            np.random.randint(-outside, n - self._margin + outside + 1) for n in opened[0].shape
        ]
        kinds = ((np.float32, 0), (np.int16, self._outside))
        for array, (kind, fill) in zip(opened, kinds, strict=True):
            cube = np.full((1, *(self._margin,) * 3), fill, kind)
            source, target = [], [0]
            for low, n in zip(start, array.shape, strict=True):
                first, last = max(low, 0), min(low + self._margin, n)
                source.append(slice(first, last))
                target.append(slice(first - low, last - low))
            cube[tuple(target)] = array[tuple(source)]
            yield torch.from_numpy(cube)


def measure(job: dict[str, Any]) -> dict[str, float]:
    """Return the steady state of one loader."""
    started = time.perf_counter()
    if job["workers"]:
        augmenter = NonDetMultiThreadedAugmenter(
            Batches(job),
            None,
            job["workers"],
            num_cached=max(6, job["workers"] // 2),
            wait_time=WAIT,
        )
    else:
        augmenter = Batches(job)
    # Queues that were filled while nobody measured must be empty first.
    return steady.measure(
        iter(augmenter), _touch, started, job["seconds"], warm=max(6, 2 * job["workers"])
    )


def _touch(batch: dict[str, Any]) -> int:
    for tensor in (batch["image"], *batch["label"]):
        tensor.view(-1)[-1].item()
    return len(batch["image"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--job", required=True)
    parser.add_argument("--prepare", action="store_true")
    chosen = parser.parse_args()
    print(json.dumps((prepare if chosen.prepare else measure)(json.loads(chosen.job))))


if __name__ == "__main__":
    main()
