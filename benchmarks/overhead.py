"""What the loader itself costs: items of an empty pipeline, an idle loader, a plan.

    python benchmarks/overhead.py
    python benchmarks/overhead.py --torchdata FOLDER    # with torchdata 0.9.0 beside it
    python benchmarks/overhead.py --quick

Items are tensors of 64 numbers that a function makes in the workers. Each row runs in a process of
its own; rows take turns, so that a busy moment falls on all alike. torchdata 0.9.0 needs a folder
of its own: ``pip install --no-deps --target FOLDER torchdata==0.9.0``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import machine
import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.datapipes.iter import IterableWrapper

NUMBERS = 64
# The first items wait for the workers to start.
WARM = 0.2
# The promises.
BESIDE_TORCH = 1.0
IDLE_SHARE = 0.01
PLANS = 20_000
IDLE_SECONDS = 5.0
SETTLE_SECONDS = 1.0
CASES = 1000


def make(number: int) -> torch.Tensor:
    """Return the item."""
    return torch.full((NUMBERS,), float(number))


class Items(IterableDataset[torch.Tensor]):
    """Every worker's share of the items, for torch's own loader."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.count = count

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yield them."""
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        yield from map(make, range(first, self.count, step))


def torch_loader(count: int, workers: int) -> Any:
    """Torch's DataLoader."""
    return DataLoader(Items(count), batch_size=None, num_workers=workers)


def torchdata_loader(count: int, workers: int) -> Any:
    """Torchdata 0.9's DataLoader2, which is on the path of this process."""
    from torchdata.dataloader2 import (  # type: ignore[import-not-found]
        DataLoader2,
        InProcessReadingService,
        MultiProcessingReadingService,
    )

    service = MultiProcessingReadingService(workers) if workers else InProcessReadingService()
    return DataLoader2(
        IterableWrapper(range(count)).sharding_filter().map(make), reading_service=service
    )


def planned_loader(count: int, workers: int) -> Any:
    """Ours, where items are planned here and made by any worker."""
    import voxpipe as vp

    service = vp.MultiProcessingReadingService(workers)
    return vp.DataLoader2(IterableWrapper(range(count)).map(make), reading_service=service)


def replicated_loader(count: int, workers: int) -> Any:
    """Ours, where every worker runs the whole graph on its share."""
    import voxpipe as vp

    pipe = IterableWrapper(range(count)).sharding_filter().map(make)
    service = vp.MultiProcessingReadingService(workers, worker_init_fn=as_it_is)
    return vp.DataLoader2(pipe, reading_service=service)


def as_it_is(pipe: Any, info: Any) -> Any:
    """Return the pipe: a function that every worker is handed keeps the graph whole."""
    return pipe


ROWS = {
    "torch DataLoader": torch_loader,
    "torchdata 0.9 DataLoader2": torchdata_loader,
    "voxpipe, planned": planned_loader,
    "voxpipe, replicated": replicated_loader,
}


def items_per_second(name: str, count: int, workers: int) -> float:
    """Return the rate after the first items."""
    loader = ROWS[name](count, workers)
    first = int(count * WARM)
    seen, started = 0, 0.0
    for _ in loader:
        seen += 1
        if seen == first:
            started = time.perf_counter()
    seconds = time.perf_counter() - started
    if seen != count:
        raise SystemExit(f"{name}: {seen} items instead of {count}")
    shut = getattr(loader, "shutdown", None)
    if shut is not None:
        shut()
    return (count - first) / seconds


def idle_share(workers: int, seconds: float) -> float:
    """Return the part of a core that a loader takes whose batches nobody takes."""
    loader = iter(planned_loader(10**6, workers))
    for _ in range(10):
        next(loader)
    time.sleep(SETTLE_SECONDS if seconds == IDLE_SECONDS else 0.0)
    before = _ticks()
    time.sleep(seconds)
    return (_ticks() - before) / os.sysconf("SC_CLK_TCK") / seconds


def _ticks() -> int:
    """Return the processor time of this process and all that come from it, in ticks."""
    times, parents = {}, {}
    for folder in Path("/proc").iterdir():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (OSError, ValueError):
            continue
        if folder.name.isdigit():
            parents[int(folder.name)] = int(fields[1])
            times[int(folder.name)] = int(fields[11]) + int(fields[12])
    own = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in own} - own:
        own |= more
    return sum(times.get(pid, 0) for pid in own)


def plans_per_second(cases: int) -> float:
    """Return how many patches are planned in a second of processor time, augmentation included."""
    import voxpipe as vp
    from voxpipe.reading_services.place import Place
    from voxpipe.reading_services.work import jobs, work_of

    listed = [{"image": f"/data/{n}.nii", "label": f"/data/{n}_seg.nii"} for n in range(cases)]
    pipe = vp.from_cases(listed).shuffle().open_volume().lazy_patch(96, samples_per_volume=8)
    pipe = pipe.augment(rotate=(-15, 15), zoom=(0.9, 1.1), flip=0.5).batch_patches(4)
    work = work_of(vp.FuseSpatial()(pipe))
    started = time.process_time()
    count = sum(len(job.items) for job in jobs(work.cut, 1, 0, Place()))
    return count / (time.process_time() - started)


def main() -> None:
    """Measure all, or one row where ``--row`` says which."""
    chosen = _arguments()
    if chosen.row:
        print(json.dumps(_row(chosen)))
        return
    print("## Overhead\n")
    print(machine.describe())
    print(f"- tensors of {NUMBERS} numbers one by one; medians of {chosen.repeats} rounds\n")
    print("| loader | workers | items/s | spread | beside torch's |\n|---|---|---|---|---|")
    for workers in chosen.workers:
        _say_rates(chosen, workers)
    idle = [_measured(chosen, "idle", workers) for workers in chosen.workers]
    plans = [_measured(chosen, "plans", 0) for _ in range(chosen.repeats)]
    told = ", ".join(
        f"{share:.2%} with {w} workers" for share, w in zip(idle, chosen.workers, strict=True)
    )
    print(f"\nAn idle loader takes of a core: {told} (promised: less than {IDLE_SHARE:.0%}).")
    print(f"Patches planned per second on one core: {median(plans):,.0f} (promised: {PLANS:,}).")


def _say_rates(chosen: argparse.Namespace, workers: int) -> None:
    names = [n for n in ROWS if chosen.torchdata or "torchdata" not in n]
    names = [n for n in names if workers or "replicated" not in n]
    rounds = [
        {name: _measured(chosen, name, workers) for name in names} for _ in range(chosen.repeats)
    ]
    torchs = median(each[names[0]] for each in rounds)
    for name in names:
        rates = [each[name] for each in rounds]
        spread = f"{min(rates):,.0f}-{max(rates):,.0f}"
        ratio = median(rates) / torchs
        verdict = ""
        if name.startswith("voxpipe") and not chosen.quick:
            verdict = " kept" if ratio >= BESIDE_TORCH else " **missed**"
        print(f"| {name} | {workers} | {median(rates):,.0f} | {spread} | {ratio:.2f}{verdict} |")


def _measured(chosen: argparse.Namespace, row: str, workers: int) -> float:
    command = [sys.executable, __file__, "--row", row, "--workers", str(workers)]
    command += ["--items", str(chosen.items)] + (["--quick"] if chosen.quick else [])
    path = [str(chosen.torchdata)] if "torchdata" in row else []
    path += [p for p in (os.environ.get("PYTHONPATH"),) if p]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise SystemExit(f"{row}: {done.stderr}")
    return float(json.loads(done.stdout.splitlines()[-1]))


def _row(chosen: argparse.Namespace) -> float:
    workers = chosen.workers[0]
    torch.set_num_threads(1)
    if chosen.row == "idle":
        return idle_share(workers, 0.2 if chosen.quick else IDLE_SECONDS)
    if chosen.row == "plans":
        return plans_per_second(20 if chosen.quick else CASES)
    return items_per_second(chosen.row, chosen.items if workers else 5 * chosen.items, workers)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--torchdata", type=Path, help="folder in which torchdata 0.9.0 lies")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs")
    parser.add_argument("--row", default="", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.items, chosen.repeats, chosen.workers = 40, 1, chosen.workers[-1:]
    return chosen


if __name__ == "__main__":
    main()
