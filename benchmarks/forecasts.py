"""Patches per second that were forecast from parts, beside those that a loader then gives.

    python benchmarks/forecasts.py
    python benchmarks/forecasts.py --formats nii converted --rounds 3

The chain is that of throughput.py. In each round every format is measured part by part, once,
with as many workers as the most that are asked for; from that all rows are forecast, also those
with other workers. Rows of threads come from a second measurement, with as many threads of
``ThreadReadingService`` as the most that are asked for. Then the loaders run. A row shows the
median of its rounds' ratios. What ran while other programs took more than a tenth of a core is run
again, as often as ``--tries`` says; the last column tells how much they took.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import machine
import phantom
import processes
import promises
import throughput

FORMATS = ("nii", "nii.gz", "converted", "b2nd")
"""``converted`` is what ``voxpipe.convert()`` makes of ``nii``."""
QUIET = 0.1
"""Cores that other programs may take."""


def main() -> None:
    chosen = _arguments()
    if chosen.measure:
        print(json.dumps(forecast(json.loads(chosen.measure))))
        return
    processes.require_linux()
    print("## Forecasts\n")
    print(machine.describe())
    print(
        f"- {chosen.count} cases of {'x'.join(map(str, chosen.shape))}, patches of "
        f"{chosen.size}^3, {chosen.rounds} rounds, {chosen.part_seconds:g} s a part, "
        f"{chosen.seconds:g} s a row\n"
    )
    with tempfile.TemporaryDirectory(prefix="voxpipe-bench-") as name:
        folder = chosen.folder or Path(name)
        if chosen.folder is None:
            write(folder, chosen)
        for file in folder.rglob("*"):  # parts and loaders then find the same in memory
            if file.is_file():
                file.read_bytes()
        print("| format | makers | forecast patches/s | measured | ratio | limit | others |")
        print("|---|---|---|---|---|---|---|", flush=True)
        ratios = [ratio for form in chosen.formats for ratio in _rows(chosen, folder, form)]
    if not chosen.quick:
        worst = max(ratios, key=lambda ratio: max(ratio, 1 / ratio))
        word = "PASS" if abs(worst - 1) <= promises.FORECAST else "FAIL"
        promised = f"promised: within {promises.FORECAST:.0%}"
        print(f"\n- {word}: the worst ratio is {worst:.2f} ({promised})")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--workers", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument("--threads", type=int, nargs="*", default=(2,), help="beside the loop")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tries", type=int, default=5, help="runs until one is quiet, at most")
    parser.add_argument("--seconds", type=float, default=5.0, help="measured time of each row")
    parser.add_argument("--part-seconds", type=float, default=0.5, help="of each part")
    parser.add_argument("--size", type=int, default=96, help="edge of a patch, in voxels")
    parser.add_argument("--shape", type=int, nargs=3, default=(320, 320, 256))
    parser.add_argument("--count", type=int, default=4, help="number of cases")
    parser.add_argument("--folder", type=Path, help="volumes that are there already")
    parser.add_argument("--quick", action="store_true", help="tiny, to see that it runs")
    # How what is forecast is measured in a process of its own.
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.quick:
        tiny = {"shape": (48, 48, 40), "size": 16, "count": 2, "rounds": 1, "workers": (0, 1)}
        tiny["threads"] = (2,)
        vars(chosen).update(tiny, tries=1, seconds=0.1, part_seconds=0.01)
    return chosen


def write(folder: Path, chosen: argparse.Namespace) -> None:
    """Write the cases in every format."""
    formats = {"nii" if form == "converted" else form for form in chosen.formats}
    command = [sys.executable, phantom.__file__, str(folder), "--count", str(chosen.count)]
    command += ["--patch", str(chosen.size), "--shape", *map(str, chosen.shape)]
    processes.run([*command, "--formats", *sorted(formats)])
    if "converted" in chosen.formats:
        code = "import sys, voxpipe; voxpipe.convert(*sys.argv[1:3], patch=int(sys.argv[3]))"
        pairs = zip(_cases(chosen, folder, "nii"), _cases(chosen, folder, "converted"), strict=True)
        for source, target in pairs:
            for key in ("image", "label"):
                command = [sys.executable, "-c", code, source[key], target[key], str(chosen.size)]
                processes.run(command)


def _cases(chosen: argparse.Namespace, folder: Path, form: str) -> list[dict[str, str]]:
    return phantom.cases(folder, chosen.count, "converted.zarr" if form == "converted" else form)


def _rows(chosen: argparse.Namespace, folder: Path, form: str) -> list[float]:
    """Print the rows of a format; return the ratios of forecast and what happened."""
    settings = {"VOXPIPE_CACHE": str(folder / "cache")}
    job = {
        "cases": _cases(chosen, folder, form) * throughput.VISITS,
        "seconds": chosen.seconds,
        "size": chosen.size,
        "batch": throughput.BATCH,
        "samples_per_volume": throughput.SAMPLES_PER_VOLUME,
        "part_seconds": chosen.part_seconds,
    }
    ratios = []
    for service, counts in (("processes", chosen.workers), ("threads", chosen.threads)):
        if counts:
            own = {**job, "service": service, "workers": max(counts), "counts": list(counts)}
            ratios += _rows_of(chosen, form, own, settings)
    return ratios


def _rows_of(
    chosen: argparse.Namespace, form: str, job: dict[str, Any], settings: dict[str, str]
) -> list[float]:
    """Print the rows of one service, forecast from what is measured with most workers."""
    expected: list[Any] = []
    given: list[list[Any]] = []
    for _ in range(chosen.rounds):
        command = [sys.executable, __file__, "--measure", json.dumps(job)]
        expected.append(_quiet(command, settings, chosen.tries))
        runs = []
        for workers in job["counts"]:
            own = json.dumps({**job, "workers": workers})
            command = [sys.executable, throughput.__file__, "--measure", "rate", "--job", own]
            runs.append(_quiet(command, settings, chosen.tries))
        given.append(runs)
    ratios = []
    what = "thread" if job["service"] == "threads" else "worker"
    for number, count in enumerate(job["counts"]):
        rates = [answer["rates"][number] for answer in expected]
        found = [runs[number]["rate"] for runs in given]
        ratios.append(median(a / b for a, b in zip(rates, found, strict=True)))
        others = max(each["others"] for each in (*expected, *(runs[number] for runs in given)))
        cells = (f"{median(rates):.1f}", f"{median(found):.1f}", f"{ratios[-1]:.2f}")
        end = (expected[-1]["limits"][number], f"{others:.2f}")
        makers = f"{count} {what}{'' if count == 1 else 's'}"
        print("| " + " | ".join((form, makers, *cells, *end)) + " |", flush=True)
    print(expected[-1]["table"], file=sys.stderr, flush=True)
    return ratios


def _quiet(command: Sequence[str], settings: dict[str, str], tries: int) -> Any:
    """Return what a command answers while other programs take little, or take least."""
    answers: list[Any] = []
    for _ in range(tries):
        answers.append(processes.run(command, settings).answer())
        if answers[-1]["others"] <= QUIET:
            break
    return min(answers, key=lambda answer: answer["others"])


@contextmanager
def _watching() -> Iterator[list[float]]:
    """Put into the list how many cores other programs took, at the end."""
    found: list[float] = []
    seconds: dict[int, float] = {}
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(0.05):
            for pid in processes.tree(os.getpid()):
                seconds[pid] = max(seconds.get(pid, 0.0), processes.cpu_seconds([pid]))

    own, busy, start = time.process_time(), processes.busy_seconds(), time.perf_counter()
    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()
        seconds[os.getpid()] = time.process_time() - own
        taken = processes.busy_seconds() - busy - sum(seconds.values())
        found.append(max(0.0, taken) / (time.perf_counter() - start))


def forecast(job: dict[str, Any]) -> dict[str, Any]:
    """Return what is forecast for each number of workers, from parts that were measured once."""
    from voxpipe import DataLoader2

    service = throughput.service_of(job)
    chain = throughput.chain_of(job)
    loading = DataLoader2(chain, None, service, seed=0)
    with loading as loader, _watching() as taken:
        found = loader.measure(seconds=job["part_seconds"])
    name = "threads" if found.facts.beside_loop else "workers"
    forecasts = [found.forecast(**{name: count}) for count in job["counts"]]
    return {
        "rates": [each.batches_per_second * found.costs.items for each in forecasts],
        "limits": [each.limit for each in forecasts],
        "others": taken[0],
        "table": str(found),
        "costs": asdict(found.costs),
    }


if __name__ == "__main__":
    main()
