"""Patches per second and peak memory, by format and number of workers.

    python benchmarks/throughput.py
    python benchmarks/throughput.py --formats nii zarr64 --workers 0 2 --seconds 5

Image (int16) and label (uint8) patches of 96^3, each rotated, zoomed and flipped, in batches of
4, as in the README; the consumer touches one element of each tensor. Every row is measured in
a process of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import machine
import phantom
import processes

BATCH = 4
SAMPLES_PER_VOLUME = 8
WINDOWS = 5
"""The measured time is cut into so many windows; their spread says what the figure is worth."""
MB = 10**6
COLUMNS = (
    "format",
    "workers",
    "patches/s",
    "spread",
    "ratio",
    "CPU ms/patch",
    "first batch s",
    "peak MB",
    "anonymous",
    "shared",
    "mapped",
)


def main() -> None:
    chosen = _arguments()
    if chosen.measure:
        print(json.dumps(MEASURES[chosen.measure](json.loads(chosen.job))))
        return
    processes.require_linux()
    print("## Throughput\n")
    print(machine.describe())
    print(
        f"- {chosen.count} cases of {'x'.join(map(str, chosen.shape))}, patches of {chosen.size}^3 "
        f"(image int16, label uint8), batches of {BATCH}, {chosen.seconds:g} s per row\n"
    )
    with tempfile.TemporaryDirectory(prefix="voxpipe-bench-") as name:
        folder = Path(name)
        writer = [sys.executable, phantom.__file__, name, "--count", str(chosen.count)]
        writer += ["--shape", *map(str, chosen.shape), "--formats", *chosen.formats]
        processes.run(writer)
        if "nii.gz" in chosen.formats:
            _say_first_touch(chosen, folder)
        print("| " + " | ".join(COLUMNS) + " |")
        print("|" + "---|" * len(COLUMNS))
        for row in _rows(chosen, folder):
            print("| " + " | ".join(row) + " |", flush=True)
        sizes = [f"{form} {_size(folder, form, chosen.count)} MB" for form in chosen.formats]
        print("\nSize on disk: " + ", ".join(sizes))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--formats", nargs="+", choices=phantom.FORMATS, default=phantom.FORMATS)
    parser.add_argument("--workers", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument("--seconds", type=float, default=15.0, help="measured time of each row")
    parser.add_argument("--size", type=int, default=96, help="edge of a patch, in voxels")
    parser.add_argument("--shape", type=int, nargs=3, default=(320, 320, 256))
    parser.add_argument("--count", type=int, default=6, help="number of cases")
    # How a row is started in a process of its own.
    parser.add_argument("--measure", choices=MEASURES, help=argparse.SUPPRESS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    return parser.parse_args()


def _rows(chosen: argparse.Namespace, folder: Path) -> Iterator[list[str]]:
    base = 0.0
    for name in chosen.formats:
        cases = phantom.cases(folder, chosen.count, name)
        for workers in chosen.workers:
            job = {
                "cases": cases,
                "workers": workers,
                "seconds": chosen.seconds,
                "size": chosen.size,
            }
            finished = processes.run(_command("rate", job), _settings(folder))
            answer, peak = finished.answer(), finished.peak
            base = base or answer["rate"]
            yield [
                name,
                str(workers),
                f"{answer['rate']:.1f}",
                f"{answer['low']:.1f}–{answer['high']:.1f}",
                f"{answer['rate'] / base:.2f}",
                f"{answer['cpu_ms']:.0f}",
                f"{answer['first']:.2f}",
                *(
                    f"{part / MB:.0f}"
                    for part in (peak.total, peak.anonymous, peak.shared, peak.mapped)
                ),
            ]


def _say_first_touch(chosen: argparse.Namespace, folder: Path) -> None:
    cases = phantom.cases(folder, chosen.count, "nii.gz")
    answer = processes.run(_command("first_touch", cases), _settings(folder)).answer()
    decoded = chosen.count * math.prod(chosen.shape) * 3 / MB  # int16 and uint8
    print(
        f"First touch of .nii.gz: {answer['volumes']} volumes decoded into the cache in "
        f"{answer['seconds']:.1f} s, {decoded / answer['seconds']:.0f} MB/s, by one process.\n"
    )


def _settings(folder: Path) -> dict[str, str]:
    """Return the environment of every measured process: a cache that goes with the folder."""
    return {"VOXPIPE_CACHE": str(folder / "cache")}


def _size(folder: Path, name: str, count: int) -> int:
    total = 0
    for case in phantom.cases(folder, count, name):
        for key in ("image", "label"):
            path = Path(case[key])
            files = path.rglob("*") if path.is_dir() else [path]
            total += sum(file.stat().st_size for file in files if file.is_file())
    return round(total / MB)


def _command(measure: str, job: Any) -> list[str]:
    return [sys.executable, __file__, "--measure", measure, "--job", json.dumps(job)]


def measure_rate(job: dict[str, Any]) -> dict[str, float]:
    """Return what the steady state of one loader gives, and how long its first batch took."""
    import torch  # noqa: F401  its import is not part of the time to the first batch

    import voxpipe as vp

    started = time.perf_counter()
    pipe = (
        vp.from_cases(job["cases"])
        .shuffle()
        .open_volume()
        .lazy_patch(job["size"], samples_per_volume=SAMPLES_PER_VOLUME)
        .augment(rotate=(-15, 15), zoom=(0.9, 1.1), flip=0.5)
        .batch_patches(BATCH)
    )
    service = vp.MultiProcessingReadingService(job["workers"], persistent_workers=True)
    with vp.DataLoader2(pipe, [vp.FuseSpatial()], service, seed=0) as loader:
        batches = _endless(loader)
        _touch(next(batches))
        first = time.perf_counter() - started
        # Batches are dealt in turn and come in plan order: after these, every worker has
        # delivered twice, and its imports and first page faults are over.
        begun = max(1, 2 * job["workers"])
        for _ in range(begun):
            _touch(next(batches))
        steady = _steady(batches, job["seconds"])
        patches = steady["patches"] + BATCH * (1 + begun)
        return {**steady, "first": first, "patches": patches}


def _steady(batches: Iterator[Any], seconds: float) -> dict[str, float]:
    pids = processes.tree(os.getpid())
    cpu = processes.cpu_seconds(pids)
    start = now = time.perf_counter()
    arrivals: list[tuple[float, int]] = []
    while now - start < seconds:
        patches = _touch(next(batches))
        now = time.perf_counter()
        arrivals.append((now, patches))
    cpu = processes.cpu_seconds(pids) - cpu
    total = sum(patches for _, patches in arrivals)
    rates = _window_rates(arrivals, start)
    return {
        "rate": total / (now - start),
        "patches": total,
        "low": min(rates),
        "high": max(rates),
        "cpu_ms": 1000 * cpu / total,
    }


def _window_rates(arrivals: list[tuple[float, int]], start: float) -> list[float]:
    """Return the rate in each of ``WINDOWS`` runs of equally many batches."""
    length = max(1, len(arrivals) // WINDOWS)
    rates = []
    for begin in range(0, len(arrivals) - length + 1, length):
        window = arrivals[begin : begin + length]
        rates.append(sum(patches for _, patches in window) / (window[-1][0] - start))
        start = window[-1][0]
    return rates


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def _touch(batch: Any) -> int:
    """Look at one element of every tensor, as a copy to a device would; return the patches."""
    for key, tensor in batch.items():
        if key != "meta":
            tensor.view(-1)[-1].item()
    return len(batch["meta"])


def measure_first_touch(cases: list[dict[str, str]]) -> dict[str, float]:
    """Return how long it takes until every volume can be read at random."""
    import voxpipe as vp

    one = vp.Region((0, 0, 0), (1, 1, 1))
    paths = [case[key] for case in cases for key in ("image", "label")]
    started = time.perf_counter()
    for path in paths:
        vp.Volume(path).read(one)
    return {"seconds": time.perf_counter() - started, "volumes": len(paths)}


MEASURES = {"rate": measure_rate, "first_touch": measure_first_touch}


if __name__ == "__main__":
    main()
