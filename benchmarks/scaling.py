"""What a patch costs when the volume, the patch, the chunks, the workers or the cases grow.

    python benchmarks/scaling.py
    python benchmarks/scaling.py --sections volume --volumes 320 1280
    python benchmarks/scaling.py --quick

Each section changes one thing. Volumes are sparse: their length is what the table says, but only
the rows that the patches will read are written (as in memory.py), so that 64 GB take about 1 GB of
disk. Everything lies in the page cache. Sizes are measured in turn, round by round; a patch
counts with its median over the rounds, and a row with the mean over its patches. Below the workers
stands what parts of a patch forecast for four workers where there are more cores, and what limits.
``many_cases.py`` has the section ``cases``.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path
from statistics import mean, median
from typing import Any

import forecasts
import machine
import many_cases
import memory
import numpy as np
import phantom
import processes
import promises
import throughput

VOLUMES = (320, 640, 1280, 2048, 3200)
"""Edges of int16 cubes: 66 MB, 524 MB, 4.2 GB, 17 GB, 66 GB."""
PATCHES = (32, 64, 96, 128, 192)
CHUNKS = (16, 32, 64, 128)
WORKERS = (0, 1, 2, 3, 4)
OUTLOOK = 4
"""Workers that are forecast for a machine with more cores."""
BYTES_WRITTEN = 5
"""Per voxel of a patch: float32 of the image, uint8 of the label."""
COPIED_BYTES, COPIES = 64 * 10**6, 8
"""More than caches hold, and often enough for a mean."""
CASES = (1000, 100_000)
SECTIONS = ("volume", "patch", "chunk", "workers", "cases")
FREE_BYTES = 5 * 10**9
"""Disk that the largest section takes, with a margin: the volumes of one format."""
QUICK = {
    "volumes": (40, 64),
    "patches": (8, 16),
    "chunks": (8, 16),
    "workers": (0, 1),
    "cases": (20,),
    "manifest": 20,
    "case_rounds": 1,
    "size": 16,
    "edge": 48,
    "count": 3,
    "rounds": 2,
    "seconds": 0.1,
}


@dataclass(frozen=True)
class Case:
    """One row: a volume, and the patches that are drawn from it."""

    name: str
    """First cell of the row."""
    form: str
    """``nii`` or ``zarr``."""
    edge: int
    """Edge of the volume in voxels."""
    size: int
    """Edge of a patch in voxels."""
    chunk: int = memory.CHUNK
    """Edge of a chunk, for zarr."""


@dataclass(frozen=True)
class Cost:
    """What one patch took."""

    wall: float
    """Milliseconds, as a clock shows them."""
    cpu: float
    """Milliseconds of the process: neighbours count less."""
    faults: float
    """Times that the kernel had to map pages; none of them waited for a disk."""
    touched: float
    """Megabytes of stored voxels, in whole chunks."""
    copied: float = 0.0
    """Milliseconds that NumPy alone takes to copy the box of a patch out of a mapped file."""


def main() -> None:
    chosen = _arguments()
    processes.require_linux()
    print("## Scaling\n")
    print(machine.describe())
    print(
        f"- image int16, rotated, zoomed and flipped; {chosen.count} patches, "
        f"{chosen.rounds} rounds"
    )
    sections: dict[str, Callable[[argparse.Namespace], None]] = {
        "volume": _volumes,
        "patch": _patches,
        "chunk": _chunks,
        "workers": _workers,
        "cases": many_cases.print_table,
    }
    for name in chosen.sections:
        sections[name](chosen)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--volumes", type=int, nargs="+", default=VOLUMES, help="edges in voxels")
    parser.add_argument("--patches", type=int, nargs="+", default=PATCHES, help="edges in voxels")
    parser.add_argument("--chunks", type=int, nargs="+", default=CHUNKS, help="edges in voxels")
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS)
    parser.add_argument("--cases", type=int, nargs="+", default=CASES, help="cases of a list")
    parser.add_argument(
        "--manifest", type=int, default=0, help="cases of a manifest by columns, beside the lists"
    )
    parser.add_argument("--case-rounds", type=int, default=3, help="processes per cell of cases")
    parser.add_argument("--formats", nargs="+", choices=memory.WRITERS, default=("nii", "zarr"))
    parser.add_argument("--size", type=int, default=96, help="edge where it does not change")
    parser.add_argument("--edge", type=int, default=512, help="volume where it does not change")
    parser.add_argument("--count", type=int, default=8, help="patches per volume")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=6.0, help="per number of workers")
    parser.add_argument(
        "--quick", action="store_true", help="tiny, to see that it runs; judges nothing"
    )
    chosen = parser.parse_args()
    if chosen.quick:
        vars(chosen).update(QUICK)
    return chosen


def _volumes(chosen: argparse.Namespace) -> None:
    for form in chosen.formats:
        cases = [Case(_bytes(edge), form, edge, chosen.size) for edge in chosen.volumes]
        costs = _say(f"Volume, {form}, patches of {chosen.size}^3", "volume", cases, chosen)
        if not chosen.quick:
            print("\n".join(["", *verdicts(costs)]), flush=True)


def verdicts(costs: Sequence[Cost]) -> list[str]:
    """Return whether the cost per patch stays the same, by the clock and by processor time."""
    lines = []
    for name, values in (
        ("ms/patch", [cost.wall for cost in costs]),
        ("CPU ms/patch", [cost.cpu for cost in costs]),
    ):
        ratio = max(values) / min(values)
        passed = "PASS" if ratio <= promises.RATIO_OF_VOLUMES else "FAIL"
        text = f"largest {name} is {ratio:.2f} x the smallest"
        lines.append(f"- {passed}: {text} (promised: {promises.RATIO_OF_VOLUMES:g})")
    return lines


def _patches(chosen: argparse.Namespace) -> None:
    cases = [Case(f"{size}^3", "nii", chosen.edge, size) for size in chosen.patches]
    _say(f"Patch, nii of {chosen.edge}^3", "patch", cases, chosen)


def _chunks(chosen: argparse.Namespace) -> None:
    cases = [Case(f"{n}^3", "zarr", chosen.edge, chosen.size, n) for n in chosen.chunks]
    _say(f"Chunk, zarr of {chosen.edge}^3, patches of {chosen.size}^3", "chunk", cases, chosen)


def _say(title: str, first: str, cases: Sequence[Case], chosen: argparse.Namespace) -> list[Cost]:
    print(f"\n### {title}\n")
    print(
        f"| {first} | ms/patch | CPU ms/patch | ns/voxel | page faults | MB | times the first row "
        "| NumPy copies the box in ms |"
    )
    print("|---|---|---|---|---|---|---|---|", flush=True)
    costs = _costs(cases, chosen)
    for case, cost in zip(cases, costs, strict=True):
        cells = (
            case.name,
            f"{cost.wall:.2f}",
            f"{cost.cpu:.2f}",
            f"{1e6 * cost.wall / case.size**3:.1f}",
            f"{cost.faults:.0f}",
            f"{cost.touched:.1f}",
            f"{cost.wall / costs[0].wall:.2f}",
            f"{cost.copied:.2f}" if cost.copied else "",
        )
        print("| " + " | ".join(cells) + " |")
    return costs


def _costs(cases: Sequence[Case], chosen: argparse.Namespace) -> list[Cost]:
    with tempfile.TemporaryDirectory(prefix="voxpipe-bench-") as name:
        free = shutil.disk_usage(name).free
        if free < FREE_BYTES and not chosen.quick:
            raise SystemExit(
                f"{name} has {free / 1e9:.1f} GB free, and {FREE_BYTES / 1e9:g} GB may be "
                "written there. Point TMPDIR somewhere else, or name smaller volumes."
            )
        jobs = [_job(Path(name), number, case, chosen) for number, case in enumerate(cases)]
        for case, job in zip(cases, jobs, strict=True):
            memory.WRITERS[case.form](job)
        # The first round finds pages and code cold; it is not counted.
        rounds = [[epoch(job) for job in jobs] for _ in range(1 + chosen.rounds)][1:]
    return [_cost([turn[number] for turn in rounds]) for number in range(len(cases))]


def _job(folder: Path, number: int, case: Case, chosen: argparse.Namespace) -> dict[str, Any]:
    return {
        "path": str(folder / f"volume{number}.{case.form}"),
        "shape": (case.edge,) * 3,
        "size": case.size,
        "chunk": case.chunk,
        "patches": chosen.count,
        "rows": True,
    }


def _cost(rounds: Sequence[Sequence[Cost]]) -> Cost:
    """Return the mean over the patches of the median over the rounds."""
    patches = list(zip(*rounds, strict=True))
    return Cost(
        *(
            mean(median(getattr(cost, field.name) for cost in patch) for patch in patches)
            for field in fields(Cost)
        )
    )


def epoch(job: dict[str, Any]) -> list[Cost]:
    """Return what each patch of one epoch cost in this process; the same patches every time."""
    import voxpipe as vp

    costs = []
    pipe = memory.chain(job).batch_patches(1)
    with vp.DataLoader2(pipe, seed=memory.SEED) as loader:
        batches = iter(loader)
        for _ in range(job["patches"]):
            before = _now()
            next(batches)["image"].view(-1)[-1].item()
            after = _now()
            costs.append(
                Cost(*(b - a for a, b in zip(astuple(before), astuple(after), strict=True)))
            )
    # The first patch comes with the start of the epoch.
    if not job["path"].endswith(".nii"):
        return costs[1:]
    copied = box_copies(job)
    return [replace(cost, copied=ms) for cost, ms in zip(costs[1:], copied[1:], strict=True)]


def box_copies(job: dict[str, Any]) -> list[float]:
    """Return the milliseconds that NumPy takes to copy the box of each patch, mapped anew.

    Nothing of voxpipe is in this: what grows here with the volume are the pages that a box touches.
    """
    voxels = np.memmap(
        job["path"], np.int16, "r", memory.NIFTI_HEADER, tuple(job["shape"]), order="F"
    )
    times = []
    for region in memory.planned_regions(job):
        out = np.zeros(region.shape, np.int16, order="F")
        start = time.perf_counter()
        np.copyto(out, voxels[region.slices])
        times.append(1000 * (time.perf_counter() - start))
    return times


def _now() -> Cost:
    """Return what this process has taken so far."""
    from voxpipe.core import IO_COUNTERS

    return Cost(
        1000 * time.perf_counter(),
        1000 * time.process_time(),
        resource.getrusage(resource.RUSAGE_SELF).ru_minflt,
        IO_COUNTERS.bytes_read / 1e6,
    )


def _workers(chosen: argparse.Namespace) -> None:
    edge = chosen.edge // 2  # written in full, twice
    print(f"\n### Workers, nii of {edge}^3, patches of {chosen.size}^3, image and label\n")
    print("| workers | patches/s | CPU ms/patch | times the first row |")
    print("|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory(prefix="voxpipe-bench-") as name:
        writer = [sys.executable, phantom.__file__, name, "--count", "2", "--formats", "nii"]
        processes.run([*writer, "--shape", *[str(edge)] * 3])
        first = 0.0
        job = {
            "cases": phantom.cases(Path(name), 2, "nii"),
            "seconds": chosen.seconds,
            "size": chosen.size,
            "batch": throughput.BATCH,
            "samples_per_volume": throughput.SAMPLES_PER_VOLUME,
        }
        for workers in chosen.workers:
            own = json.dumps({**job, "workers": workers})
            command = [sys.executable, throughput.__file__, "--measure", "rate"]
            answer = processes.run([*command, "--job", own]).answer()
            first = first or answer["rate"]
            cells = (
                f"{answer['rate']:.1f}",
                f"{answer['cpu_ms']:.0f}",
                f"{answer['rate'] / first:.2f}",
            )
            print(f"| {workers} | " + " | ".join(cells) + " |", flush=True)
        measured = min(machine.usable_cores(), OUTLOOK)
        more = {"workers": measured, "counts": [], "part_seconds": chosen.seconds / 10}
        command = [sys.executable, forecasts.__file__, "--measure", json.dumps({**job, **more})]
        costs = processes.run(command).answer()["costs"]
        rates = [copy_rate(threads, chosen.quick) for threads in (1, measured)]
        print("\n" + "\n".join(outlook(costs, chosen.size, rates)), flush=True)


def copy_rate(threads: int, quick: bool = False) -> float:
    """Return the bytes per second that so many threads copy at once, from memory to memory."""
    size = COPIED_BYTES // 64 if quick else COPIED_BYTES
    pairs = [(np.ones(size, np.uint8), np.empty(size, np.uint8)) for _ in range(threads)]

    def copy(pair: tuple[Any, Any]) -> None:
        for _ in range(COPIES):
            np.copyto(pair[1], pair[0])

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(copy, pairs))  # the memory is new the first time
        start = time.perf_counter()
        list(pool.map(copy, pairs))
        return threads * COPIES * size / (time.perf_counter() - start)


def outlook(parts: dict[str, Any], size: int, copy_rates: Sequence[float]) -> list[str]:
    """Return what the parts of a patch forecast for four workers on more cores, and their limits.

    ``parts`` are the fields of a cost model, ``copy_rates`` the bytes per second that one core and
    all of them copy.
    """
    from voxpipe.diagnosing import CostModel

    costs = CostModel(**parts)
    ms = {
        "planning": costs.planning,
        "fetch": costs.fetch,
        "decode": costs.decode,
        **{f"kernel {key}": seconds for key, seconds in costs.kernels.items()},
        "rest": costs.rest,
        "transport": costs.transport,
    }
    ms = {part: 1000 * (seconds or 0.0) / costs.items for part, seconds in ms.items()}
    lock = 1000 * costs.lock / costs.items
    names = ", ".join(f"{part} {value:.3g}" for part, value in ms.items())
    slower = (1 / costs.alone - 1) / max(1, costs.at_once - 1)
    lines = [
        f"Parts of a patch in ms, measured with {costs.at_once} at once: {names}; {lock:.3g} of it "
        f"Python with the interpreter's lock. A core beside another is {slower:.0%} slower.",
        "",
        f"| {OUTLOOK} workers, 1 thread each | patches/s, limit | if each core slows others so |",
        "|---|---|---|",
    ]
    factor = costs.alone * (1 + slower * (OUTLOOK - 1))
    slowed = replace(
        costs,
        alone=1.0,
        fetch=costs.fetch and costs.fetch * factor,
        decode=costs.decode and costs.decode * factor,
        kernels={key: factor * seconds for key, seconds in costs.kernels.items()},
    )
    for cores in (OUTLOOK, 2 * OUTLOOK):
        found = [model.forecast(OUTLOOK, cores=cores) for model in (costs, slowed)]
        cells = [f"{each.batches_per_second * costs.items:.0f}, {each.limit}" for each in found]
        lines.append(f"| {cores} cores | " + " | ".join(cells) + " |")
    threads = costs.forecast(0, threads=OUTLOOK, cores=2 * OUTLOOK, beside_loop=True)
    return [
        *lines,
        "",
        *_limits(ms, lock, costs.bytes_read + 2 * BYTES_WRITTEN * size**3, copy_rates),
        f"{OUTLOOK} threads of one process on {2 * OUTLOOK} cores: "
        f"{threads.batches_per_second * costs.items:.0f} patches/s; the lock limits them at about "
        f"{costs.lock_cores:.0f} cores.",
    ]


def _limits(
    ms: dict[str, float], lock: float, moved: float, copy_rates: Sequence[float]
) -> list[str]:
    """Return the patches per second that each thing allows by itself."""
    here = ms["planning"] + ms["transport"]
    alone = {
        f"the {OUTLOOK} workers": (sum(ms.values()) - here) / OUTLOOK,
        "the consumer's process: planning, taking over": here,
        "the planner": ms["planning"],
        "threads of one process instead: Python with the lock": lock + ms["planning"],
        f"memory: {moved / 1e6:.1f} MB a patch": 500 * moved / copy_rates[-1],
    }
    rows = [f"| {name} | {1000 / took:.0f} |" for name, took in alone.items() if took]
    copied = " and ".join(f"{2 * rate / 1e9:.1f}" for rate in copy_rates)
    return [
        "| limit by itself | patches/s |",
        "|---|---|",
        *rows,
        "",
        f"Memory moves {copied} GB/s for copies of one core and of all here; what a patch writes "
        "counts twice, as a line is fetched before it is written.",
    ]


def _bytes(edge: int) -> str:
    size = memory.ITEM_BYTES * edge**3
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


if __name__ == "__main__":
    main()
