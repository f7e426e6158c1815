"""Rates and costs of workers in a Ray cluster, and a forecast for larger clusters.

    python -m benchmarks.cluster
    python -m benchmarks.cluster --sections simulation

``rates`` compares worker processes with Ray actors on the same node. ``receiving`` measures the
processor time of the trainer's node for batches of actors on another node. ``slow`` measures how
much of the ideal rate remains while one of four actors is slow. ``simulation`` compares
``cluster_simulation.py`` with paced actors, and prints the workers that a rate needs. ``peer``
compares with Ray Data and MONAI's transforms.

All nodes run on this machine, at loopback addresses, so no network card is involved. A busy machine
disturbs rates: each figure is the best of several rounds, in which all services take turns.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent))

import machine
import phantom
import processes
import promises
from cluster_simulation import Cluster, simulate, workers_for

import voxpipe as vp

SECTIONS = ("rates", "receiving", "slow", "simulation", "peer")
BATCH, WORKERS, SEED = 4, 2, 1
MARGIN = 32
"""How much larger a volume is than a patch, in voxels."""
HOME = "127.0.0.2"
OTHER = "127.0.0.3"
PACE = 0.1
"""Seconds that a paced batch takes."""
ACTORS = 4
NODES, NODE_CORES, RANKS = 64, 16, 8
"""The largest cluster that is simulated; each core of a node has one worker."""
RATES = (100, 300, 1000, 3000, 10000)
MAKES = (0.03, 0.1, 0.3)
"""Seconds that making a batch takes: ``.nii``, compressed shards, and heavy chains."""
PEER_SIZE, PEER_EDGE, PEER_CASES = 64, 160, 8
"""Edges of patches and volumes beside Ray Data, and the number of volumes."""
SPREAD = 0.2
EPOCH = 3000
"""Batches of each rank in the simulation of the largest cluster."""
QUICK = {"size": 16, "batches": 8, "rounds": 1, "paced": 12}


@dataclass(frozen=True)
class Cost:
    """Milliseconds per batch, by the clock and of processors."""

    wall: float
    main: float = 0.0
    """Of the main thread of the trainer."""
    process: float = 0.0
    """Of all threads of the trainer."""
    ray: float = 0.0
    """Of Ray's processes on the trainer's node: the raylet, and forwarders of blocked workers."""

    @property
    def node(self) -> float:
        """Processor time of the trainer and of Ray on its node."""
        return self.process + self.ray


class Pace:
    """Makes each batch last ``seconds``, and ``slow`` times as long in one process.

    The slow process is the one that first links ``folder/slow`` to its number.
    """

    def __init__(self, folder: str, seconds: float) -> None:
        self.folder, self.seconds = folder, seconds

    def __call__(self, batch: Any) -> Any:
        """Return the batch after the wait."""
        claim = f"{self.folder}/slow"
        with contextlib.suppress(FileExistsError):
            os.symlink(str(os.getpid()), claim)
        is_slow = os.readlink(claim) == str(os.getpid())
        factor = float(Path(self.folder, "factor").read_text()) if is_slow else 1.0
        threading.Event().wait(factor * self.seconds)
        return batch


def main() -> None:
    chosen = _arguments()
    processes.require_linux()
    print("## Cluster\n")
    print(machine.describe())
    # Ray writes a token into the home folder otherwise, and reads this one at its import.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(16))
    sections = {
        "rates": _rates,
        "receiving": _receiving,
        "slow": _slow,
        "simulation": _simulation,
        "peer": _peer,
    }
    warnings.simplefilter("ignore", vp.errors.WorkerReplaced)  # one is killed on purpose
    with tempfile.TemporaryDirectory(prefix="voxpipe-bench-") as name:
        chosen.folder = name
        for section in chosen.sections:
            sections[section](chosen)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--size", type=int, default=promises.PATCH, help="edge of a patch")
    parser.add_argument("--batches", type=int, default=60, help="per round and service")
    parser.add_argument("--paced", type=int, default=120, help="batches of an epoch that is paced")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="tiny sizes; judges nothing")
    chosen = parser.parse_args()
    if chosen.quick:
        vars(chosen).update(QUICK)
    return chosen


@contextlib.contextmanager
def nodes(here: int, other: int) -> Iterator[int]:
    """Start Ray with ``here`` actors on the trainer's node, and ``other`` on a second one.

    Yield the process id of the raylet of the trainer's node.
    """
    import ray
    from ray import cluster_utils

    folder = tempfile.mkdtemp(prefix="voxpipe-ray-")
    # Port 0: another cluster on this machine may have the usual one.
    common: dict[str, Any] = {"include_dashboard": False, "dashboard_port": 0}
    common |= {"object_store_memory": 80 * 2**20, "temp_dir": folder}
    # It says that later calls of ray.init() would find this cluster.
    logging.getLogger("ray").setLevel(logging.ERROR)
    cluster = cluster_utils.Cluster()
    try:
        head = cluster.add_node(num_cpus=here, node_ip_address=HOME, **common)
        if other:
            cluster.add_node(num_cpus=other, node_ip_address=OTHER, **common)
        ray.init(
            cluster.address, log_to_driver=False, configure_logging=False, _node_ip_address=HOME
        )
        yield head.all_processes["raylet"][0].process.pid
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def turned(chosen: argparse.Namespace) -> Any:
    """Return the chain of the rates: turned patches of a volume that it writes."""
    folder = Path(chosen.folder)
    phantom.write_cases(folder, 1, (chosen.size + MARGIN,) * 3, ["nii"])
    pipe: Any = vp.from_cases(phantom.cases(folder, 1, "nii")).open_volume()
    pipe = pipe.lazy_patch(chosen.size, samples_per_volume=BATCH * chosen.batches)
    return pipe.augment(rotate=(-15, 15), zoom=(0.9, 1.1), flip=0.5).batch_patches(BATCH)


def _forwarders() -> list[int]:
    """Return the actors that pass on the bytes of workers that cannot connect."""
    return [
        int(file.parent.name)
        for file in Path("/proc").glob("[0-9]*/cmdline")
        if file.read_bytes().startswith(b"ray::Forwarder")
    ]


@contextlib.contextmanager
def blocked_port() -> Iterator[None]:
    """Let no worker connect to pools that are made meanwhile, except those of their node."""
    from voxpipe.extensions.cluster.stream import StreamServer

    start = StreamServer.__init__

    def start_blocked(self: Any, *arguments: Any) -> None:
        start(self, *arguments)
        with socket.create_server((HOME, 0)) as free:
            self.address = free.getsockname()

    with mock.patch.object(StreamServer, "__init__", start_blocked):
        yield


def _epoch(loader: Any, pids: Sequence[int] = ()) -> Cost:
    """Return the cost of a batch; the first one comes with the start of the epoch."""
    batches = iter(loader)
    next(batches)
    before, count = _now(pids), 0
    for _ in batches:
        count += 1
    after = _now(pids)
    return Cost(*(1000 * (b - a) / count for a, b in zip(before, after, strict=True)))


def _now(pids: Sequence[int]) -> tuple[float, float, float, float]:
    ray = processes.cpu_seconds(pids)
    return time.perf_counter(), time.thread_time(), time.process_time(), ray


def in_turns(loaders: Sequence[Any], rounds: int, raylet: int) -> list[list[Cost]]:
    """Return the cost of each loader in each round; the first round is not counted."""
    for loader in loaders:  # so that its actors are up
        _epoch(loader)
    pids = [raylet, *_forwarders()]
    found = [[_epoch(loader, pids) for loader in loaders] for _ in range(rounds)]
    return [list(costs) for costs in zip(*found, strict=True)]


def best(costs: Sequence[Cost]) -> Cost:
    """Return the least of each figure."""
    names = ("wall", "main", "process", "ray")
    return Cost(*(min(getattr(cost, name) for cost in costs) for name in names))


def _loader(pipe: Any, service: Any) -> Any:
    return vp.DataLoader2(pipe, None, service, seed=SEED)


def _service(local: int, count: int = WORKERS, **options: Any) -> Any:
    return vp.RayReadingService(count, local, persistent_workers=True, **options)


def _processes() -> Any:
    return vp.MultiProcessingReadingService(WORKERS, persistent_workers=True)


def _rates(chosen: argparse.Namespace) -> None:
    print(f"\n### Rates, {WORKERS} workers, {BATCH} patches of {chosen.size}^3 a batch\n")
    services = {
        "worker processes": _processes(),
        "Ray, local workers": _service(WORKERS),
        "Ray, actors on this node": _service(0),
    }
    promised = (None, promises.CLUSTER_LOCAL, promises.CLUSTER_SAME_NODE)
    with nodes(WORKERS, 0) as raylet, contextlib.ExitStack() as stack:
        pipe = turned(chosen)
        loaders = [stack.enter_context(_loader(pipe, one)) for one in services.values()]
        found = in_turns(loaders, chosen.rounds, raylet)
    print("| workers | patches/s | ratio of the best | median ratio of the rounds | promised |")
    print("|---|---|---|---|---|")
    least = best(found[0]).wall
    for name, costs, promise in zip(services, found, promised, strict=True):
        ratios = [a.wall / b.wall for a, b in zip(found[0], costs, strict=True)]
        wall = best(costs).wall
        cells = [name, f"{1000 * BATCH / wall:.0f}", f"{least / wall:.2f}", f"{median(ratios):.2f}"]
        print("| " + " | ".join([*cells, f"{promise:g}" if promise else ""]) + " |", flush=True)


def _receiving(chosen: argparse.Namespace) -> None:
    print(f"\n### Processor time, {BATCH} patches of {chosen.size}^3 a batch\n")
    with nodes(0, 2 * WORKERS) as raylet, contextlib.ExitStack() as stack:
        pipe = turned(chosen)
        services = {
            "worker processes": _processes(),
            "Ray, actors on another node": _service(0),
            "the same, with a blocked port": _service(0),
            "none: this process makes the batches": None,
        }
        loaders = [stack.enter_context(_loader(pipe, one)) for one in services.values()]
        with blocked_port(), warnings.catch_warnings():
            warnings.simplefilter("ignore", vp.errors.LikelyMistake)
            _epoch(loaders[2])
        found = in_turns(loaders, chosen.rounds, raylet)
    main, node = promises.CLUSTER_MAIN_MS, promises.CLUSTER_NODE_MS
    print(f"| workers | main thread ms (promised {main:g}) | trainer ms | Ray ms ", end="")
    print(f"| trainer and Ray ms (promised {node:g}) | patches/s |\n|---|---|---|---|---|---|")
    for name, costs in zip(services, found, strict=True):
        cost, both = best(costs), min(cost.node for cost in costs)
        cells = [f"{value:.1f}" for value in (cost.main, cost.process, cost.ray, both)]
        print("| " + " | ".join([name, *cells, f"{1000 * BATCH / cost.wall:.0f}"]) + " |")


class Paced:
    """Loader of tiny batches that take :data:`PACE` seconds, made by actors on another node."""

    def __init__(self, folder: str, batches: int) -> None:
        self._folder = folder
        self._claim, self._factor = Path(folder, "slow"), Path(folder, "factor")
        phantom.write_cases(Path(folder), 1, (48, 48, 48), ["nii"])
        pipe: Any = vp.from_cases(phantom.cases(Path(folder), 1, "nii")).open_volume()
        pipe = pipe.lazy_patch(8, samples_per_volume=BATCH * batches).batch_patches(BATCH)
        self.service = _service(0, ACTORS, max_restarts=100)
        self.loader = _loader(pipe.map(Pace(folder, PACE)), self.service)

    def epoch(self, factor: float = 1.0, kill_at: int = -1) -> float:
        """Return the seconds of an epoch; one process is slow, or is killed after some batches."""
        self._claim.unlink(missing_ok=True)
        self._factor.write_text(str(factor))
        start = time.perf_counter()
        for number, _ in enumerate(self.loader):
            if number == kill_at:
                os.kill(int(os.readlink(self._claim)), signal.SIGKILL)
        return time.perf_counter() - start

    def warm_epoch(self, factor: float = 1.0, kill_at: int = -1) -> float:
        """Return the seconds of an epoch after one in which all were equally fast."""
        self.epoch()
        return self.epoch(factor, kill_at)

    def scale(self, count: int) -> None:
        """Have ``count`` actors, all of them up."""
        self.service.scale(count)
        self.epoch()
        self.epoch()


def _slow(chosen: argparse.Namespace) -> None:
    print(f"\n### One of {ACTORS} actors is slow, {chosen.paced} batches of {PACE * 1000:g} ms\n")
    factors = {1.0: None, 2.0: promises.CLUSTER_HALF_SPEED, 10.0: promises.CLUSTER_TENTH_SPEED}
    times: dict[float, list[float]] = {factor: [] for factor in factors}
    with nodes(0, ACTORS):
        paced = Paced(chosen.folder, chosen.paced)
        with paced.loader:
            paced.epoch()
            for _ in range(chosen.rounds):
                for factor, seconds in times.items():
                    seconds.append(paced.epoch(factor))
                paced.epoch()
    print("| speed | batches/s | ideal | share | promised |\n|---|---|---|---|---|")
    for factor, promise in factors.items():
        rate = chosen.paced / min(times[factor])
        ideal = (ACTORS - 1 + 1 / factor) / PACE
        cells = [f"1/{factor:g}", f"{rate:.1f}", f"{ideal:.1f}", f"{rate / ideal:.2f}"]
        print("| " + " | ".join([*cells, f"{promise:g}" if promise else ""]) + " |")


def _peer(chosen: argparse.Namespace) -> None:
    print(f"\n### Ray Data with MONAI, {WORKERS} actors, patches of {PEER_SIZE}^3\n")
    edge = 2 * PEER_SIZE if chosen.quick else PEER_EDGE
    phantom.write_cases(Path(chosen.folder), PEER_CASES, (edge,) * 3, ["nii"])
    files = [case["image"] for case in phantom.cases(Path(chosen.folder), PEER_CASES, "nii")]
    job = {"files": files, "size": PEER_SIZE, "batch": BATCH, "actors": WORKERS}
    job |= {"batches": chosen.batches, "store": 200 * 2**20}
    program = str(Path(__file__).parent / "peers" / "ray_data.py")
    print("| loader | patches/s of each round | memory of all processes, MB |\n|---|---|---|")
    found: dict[str, list[Any]] = {"ray data": [], "voxpipe": []}
    for _ in range(max(1, chosen.rounds // 2)):
        for variant, ends in found.items():
            command = [sys.executable, program, json.dumps({**job, "variant": variant})]
            ends.append(processes.run(command))
    for variant, ends in found.items():
        rates = ", ".join(f"{end.answer()['rate']:.0f}" for end in ends)
        most = max(end.peak.total for end in ends) / processes.MB
        print(f"| {variant} | {rates} | {most:.0f} |", flush=True)


def _simulation(chosen: argparse.Namespace) -> None:
    print(f"\n### Simulation beside paced actors, {chosen.paced} batches of {PACE * 1000:g} ms\n")
    rows = ["| actors | measured s | simulated s | ratio |\n|---|---|---|---|"]
    cluster = Cluster(ACTORS, PACE, receive=0.0)  # its batches are tiny
    kill_at = chosen.paced // 4
    with nodes(0, ACTORS):
        paced = Paced(chosen.folder, chosen.paced)
        with paced.loader:
            paced.epoch()
            for actors in (1, 2, ACTORS):
                paced.scale(actors)
                real = min(paced.epoch() for _ in range(min(2, chosen.rounds)))
                rows.append(
                    _compare(str(actors), real, replace(cluster, workers=actors), chosen.paced)
                )
            for factor in (2.0, 10.0):
                real = min(paced.warm_epoch(factor) for _ in range(chosen.rounds))
                slow = replace(cluster, slow={0: factor})
                rows.append(_compare(f"{ACTORS}, one at 1/{factor:g}", real, slow, chosen.paced))
            real = min(paced.warm_epoch(kill_at=kill_at) for _ in range(chosen.rounds))
            killed = replace(cluster, deaths={0: kill_at * PACE / ACTORS})
            rows.append(_compare(f"{ACTORS}, one killed", real, killed, chosen.paced))
    print("\n".join(rows), flush=True)  # not earlier: Ray prints that an actor was killed
    _forecast(chosen)


def _compare(name: str, real: float, cluster: Cluster, batches: int) -> str:
    """Return the row of a real epoch beside its simulation."""
    simulated = simulate(cluster, batches).ends[-1]
    cells = (name, f"{real:.2f}", f"{simulated:.2f}", f"{simulated / real:.2f}")
    return "| " + " | ".join(cells) + " |"


def _forecast(chosen: argparse.Namespace) -> None:
    rates = RATES[:1] if chosen.quick else RATES
    for ranks in (1, RANKS):
        print(f"\n### Workers that a rate needs, {ranks} rank{'s' * (ranks > 1)}, simulated\n")
        made = " | ".join(f"{1000 * make:g} ms a batch" for make in MAKES)
        print(f"| patches/s in total | {made} |\n|---|" + "---|" * len(MAKES))
        for rate in rates:
            clusters = (Cluster(1, make, ranks, spread=SPREAD) for make in MAKES)
            counts = [workers_for(rate / ranks / BATCH, cluster) for cluster in clusters]
            cells = ("out of reach" if n is None else f"{n * ranks}" for n in counts)
            print(f"| {rate} | " + " | ".join(cells) + " |", flush=True)
    workers = NODES * NODE_CORES // RANKS
    of_node = range(NODE_CORES // RANKS)
    cluster = Cluster(workers, MAKES[-1], RANKS, spread=SPREAD)
    print(f"\n### {NODES} nodes of {NODE_CORES} workers, {RANKS} ranks, {1000 * MAKES[-1]:g} ms\n")
    print("| nodes | patches/s in total | batches made again |\n|---|---|---|")
    for name, one in {
        "all well": cluster,
        "one at half speed": replace(cluster, slow=dict.fromkeys(of_node, 2.0)),
        "one at a tenth": replace(cluster, slow=dict.fromkeys(of_node, 10.0)),
        "one lost": replace(cluster, deaths=dict.fromkeys(of_node, 1.0)),
        "one silent for 2 s, then lost": replace(
            cluster, deaths=dict.fromkeys(of_node, 1.0), notice=2.0
        ),
    }.items():
        outcome = simulate(one, 100 if chosen.quick else EPOCH)
        rate = BATCH * RANKS * len(outcome.ends) / outcome.ends[-1]
        print(f"| {name} | {rate:.0f} | {outcome.made_again} |", flush=True)


if __name__ == "__main__":
    main()
