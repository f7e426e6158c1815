"""TorchIO: Queue and UniformSampler, augmenting patches or volumes. Prints one line of JSON.

Run by throughput.py in an environment with TorchIO. "augment volume" is what its documentation
shows: workers load and transform volumes, the queue cuts patches. "augment patch" cuts first and
transforms less, in the process that takes the patches: the loader of a queue must not have
workers. "augment patch in workers" does without the queue: every worker loads a volume, cuts
patches with the same sampler and transforms them there. A patch that is cut first has corners
that are made up.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from typing import Any

import steady
import torch
import torchio as tio

KEYS = ("image", "label")
ENDLESS = 2000
"""Volumes in an epoch: more than anybody waits for, so that no worker starts twice."""
QUEUE_VOLUMES = 2
"""Volumes whose patches fill the queue once. More make a queue that mixes better and stalls longer
while it is filled; the rate over whole fillings is the same."""


def measure(job: dict[str, Any]) -> dict[str, float]:
    """Return the steady state of one loader."""
    started = time.perf_counter()
    make = {
        "augment patch": _queue,
        "augment volume": _queue,
        "augment patch in workers": _workers,
    }[job["variant"]]
    batches = make(job, job["variant"] == "augment volume")
    period = QUEUE_VOLUMES * job["samples_per_volume"] // job["batch"]
    return steady.measure(batches, _touch, started, job["seconds"], warm=0, period=period)


def _augmentation() -> Any:
    return tio.Compose(
        [
            tio.RandomAffine(scales=(0.9, 1.1), degrees=15, image_interpolation="linear"),
            tio.RandomFlip(axes=(0, 1, 2), flip_probability=0.5),
        ]
    )


def _subjects(job: dict[str, Any]) -> list[Any]:
    return [
        tio.Subject(image=tio.ScalarImage(case["image"]), label=tio.LabelMap(case["label"]))
        for case in job["cases"]
    ]


def _queue(job: dict[str, Any], whole_volumes: bool) -> Iterator[Any]:
    augment = _augmentation()
    dataset = tio.SubjectsDataset(_subjects(job), transform=augment if whole_volumes else None)
    queue = tio.Queue(
        dataset,
        max_length=QUEUE_VOLUMES * job["samples_per_volume"],
        samples_per_volume=job["samples_per_volume"],
        sampler=tio.UniformSampler(job["size"]),
        subject_sampler=torch.utils.data.RandomSampler(
            dataset, replacement=True, num_samples=ENDLESS
        ),
        shuffle_subjects=False,  # the sampler does
        num_workers=job["workers"],
    )
    patches = queue if whole_volumes else _Augmented(queue, augment)
    return iter(tio.SubjectsLoader(patches, batch_size=job["batch"], num_workers=0))


class _Augmented(torch.utils.data.Dataset):  # type: ignore[type-arg]
    """Patches of a queue, each transformed when it is taken."""

    def __init__(self, queue: Any, augment: Any) -> None:
        self._queue, self._augment = queue, augment

    def __len__(self) -> int:
        return len(self._queue)

    def __getitem__(self, index: int) -> Any:
        return self._augment(self._queue[index])


def _workers(job: dict[str, Any], _whole_volumes: bool) -> Iterator[Any]:
    patches = _PatchesOfVolumes(
        _subjects(job), tio.UniformSampler(job["size"]), job["samples_per_volume"], _augmentation()
    )
    return iter(tio.SubjectsLoader(patches, batch_size=job["batch"], num_workers=job["workers"]))


class _PatchesOfVolumes(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    """Load a volume, cut patches out of it, transform them; for ever."""

    def __init__(self, subjects: list[Any], sampler: Any, count: int, augment: Any) -> None:
        self._dataset = tio.SubjectsDataset(subjects)
        self._sampler, self._count, self._augment = sampler, count, augment

    def __iter__(self) -> Iterator[Any]:
        while True:
            subject = self._dataset[int(torch.randint(len(self._dataset), ()))]
            for patch in self._sampler(subject, self._count):
                yield self._augment(patch)


def _touch(batch: Any) -> int:
    for key in KEYS:
        batch[key][tio.DATA].view(-1)[-1].item()
    return len(batch["image"][tio.DATA])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--job", required=True)
    print(json.dumps(measure(json.loads(parser.parse_args().job))))


if __name__ == "__main__":
    main()
