"""Ray Data with MONAI's transforms, or RayReadingService. Prints one line of JSON.

Run by cluster.py, once for each, so that all processes of Ray serve one loader. A function of Ray
Data's ``map()`` loads the volume of each patch. The chain of voxpipe draws as many patches of each
volume, and mixes them, too.
"""

from __future__ import annotations

import json
import logging
import math
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import ray

ANGLE, ZOOM = 15, 0.1
WARM = 5
"""Batches that are not measured."""


def ray_data(job: dict[str, Any]) -> Iterator[Any]:
    """Yield batches of Ray Data: its tasks load, crop and turn."""
    from monai.transforms import (
        Compose,
        EnsureChannelFirst,
        LoadImage,
        RandAffine,
        RandSpatialCrop,
    )

    turn = RandAffine(
        prob=1.0,
        rotate_range=(math.radians(ANGLE),) * 3,
        scale_range=(ZOOM,) * 3,
        padding_mode="zeros",
    )
    crop = RandSpatialCrop(job["size"], random_size=False)
    chain = Compose([LoadImage(reader="NibabelReader"), EnsureChannelFirst(), crop, turn])

    def load(row: dict[str, Any]) -> dict[str, Any]:
        return {"image": chain(row["item"]).numpy()}

    rows = job["files"] * (job["batch"] * job["batches"] // len(job["files"]) + 1)
    patches = ray.data.from_items(rows).random_shuffle(seed=1).map(load)
    yield from patches.iter_torch_batches(batch_size=job["batch"], drop_last=True)


def voxpipe(job: dict[str, Any]) -> Iterator[Any]:
    """Yield batches that two actors make."""
    import voxpipe as vp

    count = job["batch"] * job["batches"] // len(job["files"]) + 1
    pipe: Any = vp.from_cases([{"image": file} for file in job["files"]]).shuffle().open_volume()
    pipe = pipe.lazy_patch(job["size"], samples_per_volume=count)
    pipe = pipe.shuffle_plans(vp.ShuffleSpec.all_patches())
    pipe = pipe.augment(rotate=(-ANGLE, ANGLE), zoom=(1 - ZOOM, 1 + ZOOM))
    service = vp.RayReadingService(job["actors"], local_workers=0)
    with vp.DataLoader2(pipe.batch_patches(job["batch"]), None, service, seed=1) as loader:
        yield from loader


def main(arguments: Sequence[str]) -> None:
    """Measure the rate of the job that the first argument describes."""
    job = json.loads(arguments[0])
    logging.getLogger("ray").setLevel(logging.ERROR)
    options = {"include_dashboard": False, "object_store_memory": job["store"]}
    ray.init(num_cpus=job["actors"], log_to_driver=False, configure_logging=False, **options)
    if job["variant"] == "ray data":
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
    start, patches = 0.0, 0
    batches = {"ray data": ray_data, "voxpipe": voxpipe}[job["variant"]](job)
    for number, batch in enumerate(batches):
        if number == WARM:
            start = time.perf_counter()
        elif number > WARM:
            patches += len(batch["image"])
    seconds = time.perf_counter() - start
    ray.shutdown()
    print(json.dumps({"rate": patches / seconds}))


if __name__ == "__main__":
    main(sys.argv[1:])
