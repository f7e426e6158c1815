"""Patches per second and peak memory, by format and number of workers, and beside other loaders.

    python benchmarks/throughput.py
    python benchmarks/throughput.py --formats nii zarr64 --workers 0 2 --seconds 5
    python benchmarks/throughput.py --formats nii nii.gz --workers 2 --peers --rounds 3
    python benchmarks/throughput.py --formats nii --workers 2 --peers monai_lazy
    python benchmarks/throughput.py --work nnunet --workers 2 --peers nnunet_recipe --rounds 3

Image (int16) and label (uint8) patches of 96^3, each rotated, zoomed and flipped, in batches of
4, as in the README; with ``--work nnunet`` patches of 128^3 in batches of 2, to which is done what
nnU-Net does by default, deep supervision included. The consumer touches one element of each tensor.
Every row is measured in a process of its own, peers in a virtual environment of their own, on the
same files.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import chains
import machine
import phantom
import processes
import promises
import results
import steady
from peers import venvs

BATCH = chains.WORKS["readme"].batch
SAMPLES_PER_VOLUME = 8
VISITS = 21
"""Times that an epoch visits a case: 6 cases make 252 batches, about nnU-Net's 250. The peers'
epochs have no end, so that none of them starts its workers twice."""
MB = 10**6
SERVICES = ("processes", "threads")
QUICK = {
    "shape": (48, 48, 40),
    "size": 16,
    "count": 2,
    "seconds": 0.1,
    "workers": (0, 1),
    "visits": 1,
}
"""What ``--quick`` sets, whatever else is given."""


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
        f"(image int16, label uint8), {chosen.work}'s work, batches of {chosen.batch}, epochs of "
        f"{chosen.visits * chosen.count * SAMPLES_PER_VOLUME // chosen.batch}, "
        f"{chosen.seconds:g} s per row, {chosen.rounds} rounds\n",
        flush=True,
    )
    pythons = {name: _python_of(name, chosen.venvs) for name in chosen.peers}
    with tempfile.TemporaryDirectory(prefix="voxpipe-bench-") as name:
        folder = Path(name)
        # Peers read .nii, whether voxpipe is measured from it or not.
        formats = sorted({*chosen.formats, *(["nii"] if pythons else [])})
        writer = [sys.executable, phantom.__file__, name, "--count", str(chosen.count)]
        writer += ["--patch", str(chosen.size)]
        processes.run(
            [*writer, "--shape", *map(str, chosen.shape), "--formats", *formats],
        )
        if "nii.gz" in chosen.formats:
            _say_first_touch(chosen, folder)
        rows = [*_own_rows(chosen, folder), *_peer_rows(chosen, folder, pythons)]
        found = _measured(rows, chosen.rounds)
        print(results.table(found))
        sizes = [f"{form} {_size(folder, form, chosen.count)} MB" for form in chosen.formats]
    print("\nSize on disk: " + ", ".join(sizes))
    print(_kernel(found[0]))
    if not chosen.quick:
        print("\n".join(["", *results.verdicts(found, chosen.size)]))


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--work", choices=chains.WORKS, default="readme", help="what is done to a patch"
    )
    parser.add_argument("--formats", nargs="+", choices=phantom.FORMATS)
    parser.add_argument("--workers", type=int, nargs="+", default=(0, 1, 2))
    parser.add_argument(
        "--services",
        nargs="+",
        choices=SERVICES,
        default=("processes",),
        help="what makes batches; the number of workers is that of threads, too",
    )
    parser.add_argument("--seconds", type=float, default=15.0, help="measured time of each row")
    parser.add_argument(
        "--rounds", type=int, default=1, help="times that all rows are measured, one after another"
    )
    parser.add_argument("--size", type=int, help="edge of a patch, in voxels")
    parser.add_argument("--shape", type=int, nargs=3, default=(320, 320, 256))
    parser.add_argument("--count", type=int, default=6, help="number of cases")
    parser.add_argument("--visits", type=int, default=VISITS, help="times an epoch visits a case")
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=venvs.PEERS,
        help="measure these loaders too; all if none named",
    )
    parser.add_argument(
        "--venvs", type=Path, default=venvs.VENVS, help="where the peers' environments are made"
    )
    parser.add_argument(
        "--quick", action="store_true", help="tiny, to see that it runs; judges nothing"
    )
    # How a row is started in a process of its own.
    parser.add_argument("--measure", choices=MEASURES, help=argparse.SUPPRESS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.quick:
        vars(chosen).update(QUICK)
    work = chains.WORKS[chosen.work]
    chosen.batch = work.batch
    chosen.size = chosen.size or work.size
    chosen.formats = chosen.formats or list(work.formats)
    chosen.peers = list(venvs.PEERS) if chosen.peers == [] else chosen.peers or []
    return chosen


class _Row:
    """One row to be measured: a command, or the reason why there is none."""

    def __init__(
        self,
        what: str,
        workers: int,
        run: Callable[[], processes.Finished] | str,
        target: float | None = None,
    ) -> None:
        self.what, self.workers, self.run, self.target = what, workers, run, target


def _measured(rows: list[_Row], rounds: int) -> list[results.Result]:
    """Measure all rows, then all again: a busy minute then hits every row alike."""
    done: list[list[processes.Finished]] = [[] for _ in rows]
    problems = [row.run if isinstance(row.run, str) else "" for row in rows]
    for turn in range(rounds):
        for row, finished, number in zip(rows, done, range(len(rows)), strict=True):
            if problems[number] or isinstance(row.run, str):
                continue
            try:
                finished.append(row.run())
            except SystemExit as ended:
                if row.target is None and row.what.split(",")[0] in phantom.FORMATS:
                    raise
                # A peer that breaks does not take the other rows with it.
                finished.clear()
                problems[number] = f"it ended with status {ended.code}"
                continue
            rate = finished[-1].answer()["rate"]
            said = f"round {turn + 1}: {row.what}, {row.workers} workers: {rate:.1f} patches/s"
            peak = processes.as_text(finished[-1].peak)
            print(f"{said}\n  {peak}", file=sys.stderr, flush=True)
    return [
        results.Result(row.what, row.workers, finished, problem, row.target)
        for row, finished, problem in zip(rows, done, problems, strict=True)
    ]


def _own_rows(chosen: argparse.Namespace, folder: Path) -> Iterator[_Row]:
    for name in chosen.formats:
        for workers in chosen.workers:
            # Without workers both run everything in the thread of the loop.
            for service in chosen.services if workers else chosen.services[:1]:
                job = {**_job(chosen, folder, name, workers), "service": service}
                job["cases"] *= chosen.visits
                what = name if service == "processes" else f"{name}, {service}"
                yield _Row(what, workers, _runner(_command("rate", job), _settings(folder)))


def _peer_rows(
    chosen: argparse.Namespace, folder: Path, pythons: dict[str, Path | str]
) -> Iterator[_Row]:
    for name, python in pythons.items():
        peer = venvs.PEERS[name]
        extra: dict[str, Any] = {}
        if peer.prepares in chosen.formats:
            # The very files that voxpipe is measured from.
            extra["prepared"] = phantom.cases(folder, chosen.count, peer.prepares)
        elif peer.prepares and isinstance(python, Path):
            job = {**_job(chosen, folder, "nii", 0), "folder": str(folder / name)}
            extra["prepared"] = processes.run(
                [str(python), str(peer.script), "--prepare", "--job", json.dumps(job)],
                _peer_settings(),
            ).answer()
        for variant in peer.nnunet if chosen.work == "nnunet" else peer.variants:
            for workers in chosen.workers:
                what = f"{name.replace('_', ' ')}: {variant}"
                target = promises.FASTER.get(what)
                if isinstance(python, str):
                    yield _Row(what, workers, python, target)
                    continue
                job = {**_job(chosen, folder, "nii", workers), **extra, "variant": variant}
                command = [str(python), str(peer.script), "--job", json.dumps(job)]
                yield _Row(what, workers, _runner(command, _peer_settings()), target)


def _kernel(row: results.Result) -> str:
    """Say which code resampled: without the kernel, a row tells nothing about voxpipe."""
    path = row.rounds[0].answer()["kernel"]
    if path is None:
        return "NOT voxpipe's speed: the kernel was not built. Do so (make native) and run again."
    return f"Resampled by the native kernel, {path}."


def _python_of(name: str, folder: Path) -> Path | str:
    """Return the Python of a peer, or why there is none."""
    try:
        return venvs.python_of(venvs.PEERS[name], folder)
    except venvs.CannotInstall as problem:
        return str(problem)


def _runner(command: list[str], settings: dict[str, str]) -> Callable[[], processes.Finished]:
    return lambda: processes.run(command, settings)


def _job(chosen: argparse.Namespace, folder: Path, form: str, workers: int) -> dict[str, Any]:
    return {
        "cases": phantom.cases(folder, chosen.count, form),
        "workers": workers,
        "seconds": chosen.seconds,
        "size": chosen.size,
        "batch": chosen.batch,
        "work": chosen.work,
        "scales": chains.WORKS[chosen.work].scales,
        "form": form,
        "samples_per_volume": SAMPLES_PER_VOLUME,
    }


def _say_first_touch(chosen: argparse.Namespace, folder: Path) -> None:
    cases = phantom.cases(folder, chosen.count, "nii.gz")
    answer = processes.run(_command("first_touch", cases), _settings(folder)).answer()
    decoded = chosen.count * math.prod(chosen.shape) * 3 / MB  # int16 and uint8
    print(
        f"First touch of .nii.gz: {answer['volumes']} volumes decoded into the cache in "
        f"{answer['seconds']:.1f} s, {decoded / answer['seconds']:.0f} MB/s, by one process.\n",
        flush=True,
    )


def _settings(folder: Path) -> dict[str, str]:
    """Return the environment of every measured process: a cache that goes with the folder."""
    return {"VOXPIPE_CACHE": str(folder / "cache")}


def _peer_settings() -> dict[str, str]:
    """Return the environment of a peer: the modules of this folder, and nothing of voxpipe's."""
    return {"PYTHONPATH": str(Path(__file__).resolve().parent)}


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


def measure_rate(job: dict[str, Any]) -> dict[str, Any]:
    """Return what the steady state of one loader gives, and how long its first batch took."""
    import torch  # noqa: F401  its import is not part of the time to the first batch

    import voxpipe as vp
    from voxpipe.spatial.resampling import native_resampler as native

    started = time.perf_counter()
    pipe = chain_of(job)
    service = service_of(job)
    with vp.DataLoader2(pipe, None, service, seed=0) as loader:
        # Batches are dealt in turn and come in plan order: after these, every worker has
        # delivered twice, and its imports and first page faults are over.
        warm = max(1, 2 * job["workers"])
        seen: list[int] = []

        def touch(batch: Any) -> int:
            seen.append(_touch(batch))
            return seen[-1]

        found = steady.measure(_endless(loader), touch, started, job["seconds"], warm=warm)
    return {**found, "kernel": native.path(), "patches": sum(seen)}


def service_of(job: dict[str, Any]) -> Any:
    """Return the service of a job."""
    import voxpipe as vp

    workers = job["workers"]
    if workers and job.get("service") == "threads":
        return vp.ThreadReadingService(workers)
    return vp.MultiProcessingReadingService(workers, persistent_workers=True)


def chain_of(job: dict[str, Any]) -> Any:
    """Return the chain of a job's work over its cases; the README's unless it names another."""
    import voxpipe as vp

    pipe = (
        vp.from_cases(job["cases"])
        .shuffle()
        .open_volume()
        .lazy_patch(job["size"], samples_per_volume=job["samples_per_volume"])
    )
    work = chains.WORKS[job.get("work", "readme")]
    # What nnU-Net made of a scan is normalised already.
    pipe = work.augment(pipe, normalize=job.get("form") != "b2nd").batch_patches(job["batch"])
    return pipe.deep_supervision(work.scales) if work.scales else pipe


def _endless(loader: Any) -> Iterator[Any]:
    while True:
        yield from loader


def _touch(batch: Any) -> int:
    """Look at one element of every tensor, as a copy to a device would; return the patches."""
    for key, value in batch.items():
        if key != "meta":
            for tensor in value if isinstance(value, list) else [value]:
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
