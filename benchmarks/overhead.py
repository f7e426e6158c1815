"""What the loader itself costs: items of an empty pipeline, idling, a plan, a seed, a round.

    python benchmarks/overhead.py
    python benchmarks/overhead.py --torchdata FOLDER    # with torchdata 0.9.0 beside it
    python benchmarks/overhead.py --quick

An empty pipeline hands numbers through; beside it tensors of 64 numbers are made by a function, in
the workers. Each row runs in a process of its own; rows take turns, so that a busy moment falls on
all alike. torchdata 0.9.0 needs a folder of its own:
``pip install --no-deps --target FOLDER torchdata==0.9.0``.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import machine
import promises
import torch
from torch.utils.data import DataLoader, IterableDataset
from torch.utils.data.datapipes.iter import IterableWrapper

NUMBERS = 64
# The first items wait for the workers to start.
WARM = 0.2
# The promises.
BESIDE_TORCH = 1.0
IDLE_SHARE = 0.01
IDLE_SECONDS = 5.0
SETTLE_SECONDS = 1.0
CASES = 1000
# Items between two looks at the clock: what is compared takes turns, so that a busy moment falls on
# all alike.
BLOCK = 200
RANKS = 2
# Seconds for which a row is waited for.
PATIENCE = 300


def make(number: int) -> torch.Tensor:
    """Return the item."""
    return torch.full((NUMBERS,), float(number))


class Items(IterableDataset[Any]):
    """Every worker's share of the items, for torch's own loader."""

    def __init__(self, count: int, *, empty: bool = False) -> None:
        super().__init__()
        self.count, self.empty = count, empty

    def __iter__(self) -> Iterator[Any]:
        """Yield them."""
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        numbers = range(first, self.count, step)
        yield from numbers if self.empty else map(make, numbers)


def torch_loader(count: int, workers: int, *, empty: bool = False) -> Any:
    """Torch's DataLoader."""
    return DataLoader(Items(count, empty=empty), batch_size=None, num_workers=workers)


def torchdata_loader(count: int, workers: int, *, empty: bool = False) -> Any:
    """Torchdata 0.9's DataLoader2, which is on the path of this process."""
    from torchdata.dataloader2 import (  # type: ignore[import-not-found]
        DataLoader2,
        InProcessReadingService,
        MultiProcessingReadingService,
    )

    service = MultiProcessingReadingService(workers) if workers else InProcessReadingService()
    numbers = IterableWrapper(range(count)).sharding_filter()
    return DataLoader2(numbers if empty else numbers.map(make), reading_service=service)


def planned_loader(count: int, workers: int, *, empty: bool = False) -> Any:
    """Ours, where items are planned here and made by any worker."""
    import voxpipe as vp

    service = vp.MultiProcessingReadingService(workers)
    numbers = IterableWrapper(range(count))
    return vp.DataLoader2(numbers if empty else numbers.map(make), reading_service=service)


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
EMPTY = ", empty"
"""What follows the name of a loader in rows where nothing is made."""


def items_per_second(name: str, count: int, workers: int) -> float:
    """Return the rate after the first items."""
    kind = name.removesuffix(EMPTY)
    loader = ROWS[kind](count, workers, **({"empty": True} if kind != name else {}))
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
    from voxpipe.reading_services.planner import DeliveredBatches, jobs
    from voxpipe.reading_services.work import work_of

    listed = [{"image": f"/data/{n}.nii", "label": f"/data/{n}_seg.nii"} for n in range(cases)]
    pipe = vp.from_cases(listed).shuffle().open_volume().lazy_patch(96, samples_per_volume=8)
    pipe = pipe.augment(rotate=(-15, 15), zoom=(0.9, 1.1), flip=0.5).batch_patches(4)
    work = work_of(vp.FuseSpatial()(pipe))
    started = time.process_time()
    count = sum(len(job.items) for job in jobs(work.cut, 1, 0, DeliveredBatches()))
    return count / (time.process_time() - started)


def seeding_microseconds(count: int) -> dict[str, float]:
    """Return the processor time of an item: alone, seeded as in a worker, and as in this process.

    A worker seeds the global generators; here, where others draw from them, they are put back.
    """
    from voxpipe.reading_services.pipe_runner import seed_globals, seeded_globals

    def in_worker(number: int) -> None:
        seed_globals(number)
        make(number)

    def here(number: int) -> None:
        with seeded_globals(number):
            make(number)

    ways = {"function": make, "worker": in_worker, "here": here}
    blocks: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(max(3, count // BLOCK)):
        for name, way in ways.items():
            started = time.process_time()
            for number in range(BLOCK):
                way(number)
            blocks[name].append((time.process_time() - started) / BLOCK * 1e6)
    return {name: median(times) for name, times in blocks.items()}


def round_microseconds(count: int, repeats: int) -> dict[str, float]:
    """Return the time of an item on each of two ranks, alone and with the round of ``OnError``."""
    with tempfile.TemporaryDirectory() as folder:
        context = mp.get_context("spawn")
        told = context.SimpleQueue()
        meeting = f"file://{folder}/meeting"
        ranks = [
            context.Process(target=_rank, args=(rank, meeting, count, repeats, told))
            for rank in range(RANKS)
        ]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join(PATIENCE)
        if told.empty():
            raise SystemExit(f"ranks ended with {[process.exitcode for process in ranks]}")
        found: dict[str, float] = told.get()
        return found


def _rank(rank: int, meeting: str, count: int, repeats: int, told: Any) -> None:
    import torch.distributed as dist

    import voxpipe as vp

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=RANKS)
    rounds: dict[str, list[float]] = {"alone": [], "together": []}
    for _ in range(repeats):
        for name, adapters in (("alone", []), ("together", [vp.OnError("skip")])):
            pipe = IterableWrapper(range(RANKS * count)).map(make)
            with vp.DataLoader2(pipe, adapters, vp.DistributedReadingService()) as loader:
                items = iter(loader)
                next(items)  # the ranks meet, and find each other's addresses
                dist.barrier()
                started = time.perf_counter()
                seen = sum(1 for _ in items)
                rounds[name].append((time.perf_counter() - started) / seen * 1e6)
    if rank == 0:
        told.put({name: median(times) for name, times in rounds.items()})
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Measure all, or one row where ``--row`` says which."""
    chosen = _arguments()
    if chosen.row:
        print(json.dumps(_row(chosen)))
        return
    print("## Overhead\n")
    print(machine.describe())
    print(
        f"- numbers one by one (empty), or tensors of {NUMBERS} that a function makes; medians of "
        f"{chosen.repeats} rounds\n"
    )
    print("| loader | workers | items/s | spread | beside torch's |\n|---|---|---|---|---|")
    for workers in chosen.workers:
        _say_rates(chosen, workers, EMPTY)
        _say_rates(chosen, workers, "")
    idle = [_measured(chosen, "idle", workers) for workers in chosen.workers]
    plans = [_measured(chosen, "plans", 0) for _ in range(chosen.repeats)]
    told = ", ".join(
        f"{share:.2%} with {w} workers" for share, w in zip(idle, chosen.workers, strict=True)
    )
    print(f"\nAn idle loader takes of a core: {told} (promised: less than {IDLE_SHARE:.0%}).")
    promised = f"promised: {promises.PLANS_PER_SECOND:,}"
    print(f"Patches planned per second on one core: {median(plans):,.0f} ({promised}).")
    _say_parts(chosen)


def _say_parts(chosen: argparse.Namespace) -> None:
    """Tell what two parts add to an item, each beside the item without it."""
    seeds, rounds = _asked(chosen, "seeding", 0), _asked(chosen, "round", 0)
    own, worker, here = seeds["function"], seeds["worker"], seeds["here"]
    print(
        f"Seeding for a function of yours: an item takes {worker / own:.1f} times as long in a "
        f"worker, {here / own:.1f} times in this process ({own:.1f}, {worker:.1f} and {here:.1f} "
        "µs of processor time)."
    )
    alone, together = rounds["alone"], rounds["together"]
    print(
        f"The round of OnError on {RANKS} ranks: an item takes {together / alone:.1f} times as "
        f"long ({alone:.0f} and {together:.0f} µs)."
    )


def _say_rates(chosen: argparse.Namespace, workers: int, which: str) -> None:
    names = [n + which for n in ROWS if chosen.torchdata or "torchdata" not in n]
    names = [n for n in names if (workers and not which) or "replicated" not in n]
    rounds = [
        {name: _measured(chosen, name, workers) for name in names} for _ in range(chosen.repeats)
    ]
    torchs = median(each[names[0]] for each in rounds)
    for name in names:
        rates = [each[name] for each in rounds]
        spread = f"{min(rates):,.0f}-{max(rates):,.0f}"
        ratio = median(rates) / torchs
        verdict = ""
        # A function of the user's draws the same wherever it runs, which without workers costs more
        # than all of torch's loader: that is no empty pipeline, and is told below.
        promised = bool(which) or workers > 0
        if name.startswith("voxpipe") and promised and not chosen.quick:
            verdict = " kept" if ratio >= BESIDE_TORCH else " **missed**"
        print(f"| {name} | {workers} | {median(rates):,.0f} | {spread} | {ratio:.2f}{verdict} |")


def _measured(chosen: argparse.Namespace, row: str, workers: int) -> float:
    return float(_asked(chosen, row, workers))


def _asked(chosen: argparse.Namespace, row: str, workers: int) -> Any:
    command = [sys.executable, __file__, "--row", row, "--workers", str(workers)]
    command += ["--items", str(chosen.items)] + (["--quick"] if chosen.quick else [])
    path = [str(chosen.torchdata)] if "torchdata" in row else []
    path += [p for p in (os.environ.get("PYTHONPATH"),) if p]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path)}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    if done.returncode:
        raise SystemExit(f"{row}: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def _row(chosen: argparse.Namespace) -> Any:
    workers = chosen.workers[0]
    torch.set_num_threads(1)
    if chosen.row == "idle":
        return idle_share(workers, 0.2 if chosen.quick else IDLE_SECONDS)
    if chosen.row == "seeding":
        return seeding_microseconds(chosen.items)
    if chosen.row == "round":
        return round_microseconds(chosen.items // 10, chosen.repeats)
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
