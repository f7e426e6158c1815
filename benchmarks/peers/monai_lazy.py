"""MONAI: ``Compose(lazy=True)``, with and without CacheDataset. Prints one line of JSON.

Run by throughput.py in an environment with MONAI. What its documentation says for speed is done:
all spatial transforms in one lazy Compose, one RandAffined for rotation and zoom, many crops out of
a volume that was loaded once, float32 instead of the default float64 for the resampling, workers
that persist, a cache of the deterministic transforms that is not copied. "eager" is the same with
``lazy=False``: the crop comes first, so only the patch is resampled, and its corners are made up.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from typing import Any

import steady
import torch
from monai.data import CacheDataset, Dataset, list_data_collate
from monai.transforms import (
    Compose,
    EnsureChannelFirstd,
    LoadImaged,
    RandAffined,
    RandFlipd,
    RandSpatialCropSamplesd,
)

KEYS = ("image", "label")
ANGLE = math.radians(15)
ZOOM = 0.1
MODES = ("bilinear", "nearest")
OVERRIDES = {
    key: {"mode": mode, "dtype": torch.float32} for key, mode in zip(KEYS, MODES, strict=True)
}
ENDLESS = 10**6
"""Volumes in an epoch: more than anybody waits for, so that no worker starts twice."""


def measure(job: dict[str, Any]) -> dict[str, float]:
    """Return the steady state of one loader."""
    started = time.perf_counter()
    if job["variant"].endswith("one crop a load"):
        # What most pipelines do: a random crop per item. Else the crops of a volume share one load.
        job = {**job, "samples_per_volume": 1}
    batches = _batches(job)
    return steady.measure(
        batches,
        _touch,
        started,
        job["seconds"],
        warm=2 * job["workers"],
        # Every worker loads a volume and hands over so many batches at once.
        period=max(1, max(1, job["workers"]) * job["samples_per_volume"] // job["batch"]),
    )


def _batches(job: dict[str, Any]) -> Iterator[Any]:
    lazy = job["variant"].startswith("lazy")
    chain = Compose(
        [
            LoadImaged(KEYS, reader="NibabelReader"),
            EnsureChannelFirstd(KEYS),
            RandSpatialCropSamplesd(
                KEYS, job["size"], job["samples_per_volume"], random_size=False
            ),
            RandAffined(
                KEYS,
                prob=1.0,
                rotate_range=(ANGLE,) * 3,
                scale_range=(ZOOM,) * 3,
                mode=MODES,
                padding_mode="border",
            ),
            *(RandFlipd(KEYS, prob=0.5, spatial_axis=axis) for axis in range(3)),
        ],
        lazy=lazy,
        # The modes of the transforms above are not seen by a lazy Compose: they go here too.
        overrides=OVERRIDES if lazy else None,
    )
    cases = [{key: case[key] for key in KEYS} for case in job["cases"]]
    if job["variant"].endswith("CacheDataset"):
        dataset = CacheDataset(cases, chain, num_workers=2, progress=False, copy_cache=False)
    else:
        dataset = Dataset(cases, chain)
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=max(1, job["batch"] // job["samples_per_volume"]),
        sampler=torch.utils.data.RandomSampler(dataset, replacement=True, num_samples=ENDLESS),
        num_workers=job["workers"],
        persistent_workers=job["workers"] > 0,
        collate_fn=_Batches(job["batch"]),
    )
    for pair in loader:
        yield from pair


class _Batches:
    """Collate the patches of one volume into batches of the size that all are measured with."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __call__(self, volumes: list[list[dict[str, Any]]]) -> list[Any]:
        patches = [patch for volume in volumes for patch in volume]
        starts = range(0, len(patches), self._size)
        return [list_data_collate(patches[start : start + self._size]) for start in starts]


def _touch(batch: Any) -> int:
    for key in KEYS:
        batch[key].as_tensor().view(-1)[-1].item()
    return len(batch["image"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--job", required=True)
    print(json.dumps(measure(json.loads(parser.parse_args().job))))


if __name__ == "__main__":
    main()
