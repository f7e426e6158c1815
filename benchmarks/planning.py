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
from pathlib import Path
from typing import Any

import machine
import numpy as np

import voxpipe as vp
from voxpipe.core import Sample
from voxpipe.datapipes.epoch import set_epoch
from voxpipe.reading_services.work import Job

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
        middle = statistics.median(times)
        print(
            f"| {name} | {middle:.1f} | {min(times):.1f}–{max(times):.1f} | {1e6 / middle:,.0f} |"
        )
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
    pickled = [pickle.dumps(job, -1) for job in map(_first_job, pipes)]
    columns = []
    for pipe in pipes:
        measured = [_worker(list(_jobs(pipe))) for _ in range(repeats + 1)][1:]
        columns.append({name: [times[name] for times in measured] for name in measured[0]})
    for name in columns[0]:
        cells = [
            f"{statistics.median(c[name]):.1f} | {min(c[name]):.1f}–{max(c[name]):.1f}"
            for c in columns
        ]
        print(f"| {name} | {' | '.join(cells)} |")
    print(f"\nA job of {BATCH} samples pickles to {len(pickled[0])} and {len(pickled[1])} bytes.")


def _catalog(folder: Path) -> Any:
    """Return patches of volumes that exist, since a worker reads headers; they are all holes."""
    cases = []
    for n in range(BATCH):
        case = {key: str(folder / f"{key}{n}.npy") for key in KEYS}
        for path in case.values():
            np.lib.format.open_memmap(path, "w+", np.int16, VOLUME)  # sparse
        cases.append(case)
    return (
        vp.from_cases(cases).shuffle().open_volume().lazy_patch((SIZE,) * 3, samples_per_volume=64)
    )


def _jobs(pipe: Any) -> Iterator[Job]:
    set_epoch(pipe, SEED, 0)
    held: list[Sample] = []
    for index, item in enumerate(pipe):
        held.append(item)
        if len(held) == BATCH:
            yield Job(index // BATCH, tuple(held))
            held = []


def _first_job(pipe: Any) -> Job:
    return next(_jobs(pipe))


def _worker(jobs: list[Job]) -> dict[str, float]:
    """Return the microseconds per sample of each thing done with the description of a batch."""
    clock = _Clock(len(jobs) * BATCH)
    sent = clock.timed("pickle", [lambda job=job: pickle.dumps(job, -1) for job in jobs])
    received = clock.timed("unpickle", [lambda data=data: pickle.loads(data) for data in sent])
    samples = [sample for job in received for sample in job.items]
    patches = [sample[key] for sample in samples for key in KEYS]
    clock.timed("plan, draws included", [lambda s=s: s[KEYS[0]].plan for s in samples])
    clock.timed("source regions", [lambda p=p: p.source_region for p in patches])
    clock.timed("shape and type", [lambda p=p: (p.shape, p.dtype) for p in patches])
    clock.timed("provenance", [sample.provenance for sample in samples])
    return clock.done()


class _Clock:
    def __init__(self, count: int) -> None:
        self._count = count
        self._times: dict[str, float] = {}

    def timed(self, name: str, calls: list[Callable[[], Any]]) -> list[Any]:
        began = time.process_time()
        results = [call() for call in calls]
        self._times[name] = (time.process_time() - began) / self._count * 1e6
        return results

    def done(self) -> dict[str, float]:
        """Return the times, and the sum of what a worker does."""
        worker = sum(t for name, t in self._times.items() if name != "pickle")
        return {**self._times, "all that a worker does": worker}


if __name__ == "__main__":
    main()
