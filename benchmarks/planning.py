"""Plans per second: what a sample costs before its first voxel is read.

    python benchmarks/planning.py
    python benchmarks/planning.py --cases 200 --repeats 3

Nothing is read but headers, so the figures are those of the arithmetic and of the objects alone.
All are processor time of one process: neighbours on the machine enter less than they would in
the time on the wall.
"""

from __future__ import annotations

import argparse
import pickle
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import machine
import numpy as np

import voxpipe as vp
from voxpipe.batching.job import Job
from voxpipe.datapipes.epoch import set_epoch
from voxpipe.reading_services.planner import DeliveredBatches, jobs
from voxpipe.reading_services.work import work_of
from voxpipe.spatial.resampling import native_resampler as native

SEED = 7
SIZE = 96
VOLUME = (320, 320, 256)
BATCH = 4
KEYS = ("image", "label")


def main() -> None:
    chosen = _arguments()
    print("## Planning\n")
    print(machine.describe())
    print(
        f"- {chosen.cases} cases of image and label, patches of {SIZE}^3, batches of {BATCH}; "
        f"medians of {chosen.repeats}, spread from the fastest to the slowest\n"
    )
    print("In the planner (list, shuffle, open, patch, spatial ops), per sample:\n")
    print("| chain | µs | spread | plans/s |\n|---|---|---|---|")
    chains = _chains(chosen.cases)
    for name, times in _interleaved(chains, chosen.repeats):
        print(f"| {name} | {_told(times)} | {1e6 / statistics.median(times):,.0f} |")
    print("\nIn a worker, per sample:\n")
    with tempfile.TemporaryDirectory(prefix="voxpipe-bench-") as folder:
        _say_worker(Path(folder), chosen.repeats)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", type=int, default=1000, help="length of the catalog")
    parser.add_argument("--repeats", type=int, default=9)
    return parser.parse_args()


Measure = Callable[[], float]
"""Does the work once, and returns the microseconds of processor time per sample."""


def _interleaved(measures: dict[str, Measure], repeats: int) -> Iterator[tuple[str, list[float]]]:
    """Yield the times of each, taken in turns so that a busy moment falls on all alike."""
    rounds = [{name: measure() for name, measure in measures.items()} for _ in range(repeats + 1)]
    for name in measures:
        yield name, [times[name] for times in rounds[1:]]  # the first warms up


def _chains(count: int) -> dict[str, Measure]:
    cases = [{key: f"/data/train/case{n:05d}/{key}.nii.gz" for key in KEYS} for n in range(count)]

    def opened(per_volume: int) -> Any:
        shuffled = vp.from_cases(cases).shuffle()
        return shuffled.open_volume().lazy_patch((SIZE,) * 3, samples_per_volume=per_volume)

    unfused = turned(opened(8))
    return {
        "open, 8 patches a volume": _planner(opened(8)),
        "the same, augment": _planner(augmented(opened(8))),
        "the same, rotate, zoom, flip": _planner(unfused),
        "the same, fused": _planner(vp.FuseSpatial()(unfused)),
        "1 patch a volume, augment": _planner(augmented(opened(1))),
    }


def augmented(pipe: Any) -> Any:
    """Return ``pipe`` with the bundle of the README."""
    return pipe.augment(rotate=(-15, 15), zoom=(0.9, 1.1), flip=0.5)


def turned(pipe: Any) -> Any:
    """Return ``pipe`` with three ops, one after another."""
    return pipe.rotate((-15, 15)).zoom((0.9, 1.1)).flip(p=0.5)


def _planner(pipe: Any) -> Measure:
    def once() -> float:
        set_epoch(pipe, SEED, 0)
        began = time.process_time()
        count = sum(1 for _ in pipe)
        return (time.process_time() - began) / count * 1e6

    return once


def _say_worker(folder: Path, repeats: int) -> None:
    print("| work | augment, µs | spread | rotate, zoom, flip, µs | spread |")
    print("|---|---|---|---|---|")
    catalog = _catalog(folder)
    pipes = [augmented(catalog), turned(catalog)]
    parts: list[dict[str, list[float]]] = [{}, {}]
    for epoch in range(repeats + 1):
        for pipe, column in zip(pipes, parts, strict=True):
            # Another epoch each time, because plans that were seen may be remembered.
            for name, time_taken in _worker(_jobs(pipe, epoch)).items():
                column.setdefault(name, []).append(time_taken)
    for name in parts[0]:
        cells = " | ".join(_told(column[name][1:]) for column in parts)  # the first warms up
        print(f"| {name} | {cells} |")
    columns: list[list[float]] = [[], []]
    for _ in range(repeats + 1):
        for pipe, column in zip(pipes, columns, strict=True):
            column.append(_recipe(pipe))
    cells = " | ".join(_told(column[1:]) for column in columns)
    print(f"| all of the recipe but the kernel | {cells} |")
    sizes = [len(pickle.dumps(next(iter(_jobs(pipe, 0))), -1)) for pipe in pipes]
    print(f"\nA job of {BATCH} samples pickles to {sizes[0]} and {sizes[1]} bytes.")


def _told(times: list[float]) -> str:
    return f"{statistics.median(times):.1f} | {min(times):.1f}–{max(times):.1f}"


def _catalog(folder: Path) -> Any:
    """Return patches of volumes that exist, since a worker reads headers; they are all holes."""
    cases = []
    for n in range(BATCH):
        case = {key: str(folder / f"{key}{n}.npy") for key in KEYS}
        for path in case.values():
            np.lib.format.open_memmap(path, "w+", np.int16, VOLUME)  # sparse
        cases.append(case)
    # With labels named, nobody looks at the first voxels for classes: these are all holes.
    opened = vp.from_cases(cases).shuffle().open_volume(labels=("label",))
    return opened.lazy_patch((SIZE,) * 3, samples_per_volume=64)


def _jobs(pipe: Any, epoch: int) -> list[Job]:
    set_epoch(pipe, SEED, epoch)
    samples = list(pipe)
    return [Job(n, tuple(samples[n : n + BATCH])) for n in range(0, len(samples), BATCH)]


def _worker(jobs: list[Job]) -> dict[str, float]:
    """Return the microseconds per sample of each thing done with the description of a batch."""
    clock = _Clock()
    for job in jobs:
        with clock.timing("pickle"):
            sent = pickle.dumps(job, -1)
        with clock.timing("unpickle"):
            received = pickle.loads(sent)  # noqa: S301  made above
        volumes = [sample[key].volume for sample in received.items for key in KEYS]
        patches = [sample[key] for sample in received.items for key in KEYS]
        with clock.timing("grids of the open volumes"):
            grids = [volume.grid for volume in volumes]
        with clock.timing("plan, draws included"):
            plans = [sample[KEYS[0]].plan for sample in received.items]
        with clock.timing("source regions"):
            regions = [patch.source_region for patch in patches]
        with clock.timing("shapes and types"):
            shapes = [(patch.shape, patch.dtype) for patch in patches]
        with clock.timing("provenance"):
            told = [sample.provenance() for sample in received.items]
        assert all(map(len, (grids, plans, regions, shapes, told)))
    return clock.per_sample(len(jobs) * BATCH)


def _recipe(pipe: Any) -> float:
    """Return the microseconds per sample of a worker's recipe whose kernel does nothing.

    That is reading the job, planning, opening, the views of mapped files and the provenance: all
    Python that a patch passes through in a worker, but for sending the batch.
    """
    work = work_of(vp.FuseSpatial()(pipe.batch_patches(BATCH)))
    sent = [pickle.dumps(job, -1) for job in jobs(work.cut, SEED, 0, DeliveredBatches())]
    maker, kernel = work.maker(), native.run
    native.run = lambda *_, **__: True
    try:
        began = time.process_time()
        for data in sent:
            maker.run(pickle.loads(data), SEED, 0)  # noqa: S301  made above
        return (time.process_time() - began) / (len(sent) * BATCH) * 1e6
    finally:
        native.run = kernel


class _Clock:
    def __init__(self) -> None:
        self._times: dict[str, float] = {}

    @contextmanager
    def timing(self, name: str) -> Iterator[None]:
        began = time.process_time()
        yield
        spent = time.process_time() - began
        self._times[name] = self._times.get(name, 0.0) + spent

    def per_sample(self, count: int) -> dict[str, float]:
        """Return the times in microseconds, and the sum of what a worker does."""
        times = {name: spent / count * 1e6 for name, spent in self._times.items()}
        return {**times, "all that a worker does": sum(times.values()) - times["pickle"]}


if __name__ == "__main__":
    main()
