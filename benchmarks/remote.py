"""Patches per second from a bucket, against the same zarr files on the local disk.

    python benchmarks/remote.py
    python benchmarks/remote.py --formats zarr64 --latency 0.03 --bandwidth 60e6 --rounds 3

The bucket is voxpipe's own S3 server on this machine, with a latency before every answer and
a bandwidth per connection. Remote and local runs take turns, each in a process of its own. The
server shares the processor with the workers, which a bucket's does not: a column says what each
takes. The ratio is that of the medians, first to local runs beside a neighbour that takes as many
cores as the server did, then to those of an idle machine. The peak is that of all processes but
the server's. Last, obstore alone asks for as many ranges of the same length, in threads, and drops
them: the ratio that would be left if nothing but this came on top of a local patch.
An epoch visits every case ``--visits`` times: with 1 it is over in half a second, of which a
bucket's first answers are a tenth.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import machine
import phantom
import processes
import promises
import results
import throughput

SERVER = Path(__file__).resolve().parent.parent / "tests" / "s3_server.py"

BUCKET = "bench"
CLIENTS = ("fsspec", "obstore")
COLUMNS = (
    "format",
    "client",
    "patches/s (local, beside a neighbour, remote)",
    "server's cores",
    "ratio (beside a neighbour, idle)",
    "requests/patch",
    "MB/patch",
    "first batch s (local, remote)",
    "CPU ms/patch (local, remote, server)",
    "obstore alone: CPU ms/patch, ratio left",
    "peak MB: anonymous + shared + mapped (local, remote)",
)


BARE_REQUESTS = 1000
"""Requests of obstore alone: about a second, as many at a time as a worker may send."""


def main() -> None:
    chosen = _arguments()
    if chosen.bare:
        print(json.dumps(bare_cpu_ms(**json.loads(chosen.bare))))
        return
    processes.require_linux()
    print("## Remote\n")
    print(machine.describe())
    print(
        f"- {chosen.count} cases of {'x'.join(map(str, chosen.shape))}, patches of "
        f"{chosen.size}^3, {chosen.workers} workers, "
        f"{chosen.rounds} rounds of {chosen.seconds:g} s, epochs of "
        f"{chosen.visits * chosen.count * throughput.SAMPLES_PER_VOLUME // throughput.BATCH} "
        "batches\n"
        f"- {1000 * chosen.latency:g} ms before each answer, {chosen.bandwidth / 1e6:g} MB/s per "
        "connection\n"
    )
    with tempfile.TemporaryDirectory(prefix="voxpipe-bench-") as name:
        folder = Path(name) / BUCKET
        folder.mkdir()
        writer = [sys.executable, phantom.__file__, str(folder), "--count", str(chosen.count)]
        writer += ["--shape", *map(str, chosen.shape), "--formats", *chosen.formats]
        processes.run(writer)
        print("| " + " | ".join(COLUMNS) + " |")
        print("|" + "---|" * len(COLUMNS))
        with _server(Path(name), chosen.latency, chosen.bandwidth) as (settings, pid):
            for form in chosen.formats:
                for client in chosen.clients:
                    row = _row(chosen, folder, form, client, settings, pid)
                    print("| " + " | ".join(row) + " |", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    formats = [name for name in phantom.FORMATS if name.startswith(("zarr", "shard"))]
    parser.add_argument("--formats", nargs="+", choices=formats, default=["zarr64", "shard128"])
    parser.add_argument("--clients", nargs="+", choices=CLIENTS, default=_installed_clients())
    parser.add_argument("--latency", type=float, default=0.03, help="seconds")
    parser.add_argument("--bandwidth", type=float, default=60e6, help="bytes per second")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="measured time of each run")
    parser.add_argument("--size", type=int, default=96, help="edge of a patch, in voxels")
    parser.add_argument("--shape", type=int, nargs=3, default=(320, 320, 256))
    parser.add_argument("--count", type=int, default=6, help="number of cases")
    parser.add_argument(
        "--visits",
        type=int,
        default=throughput.VISITS,
        help="times that an epoch visits a case",
    )
    # How obstore alone is measured, in a process of its own.
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    return parser.parse_args()


def _installed_clients() -> list[str]:
    return ["fsspec"] if machine.version("obstore") == "not installed" else list(CLIENTS)


def _row(
    chosen: argparse.Namespace,
    folder: Path,
    form: str,
    client: str,
    of_server: dict[str, str],
    server: int,
) -> list[str]:
    local = phantom.cases(folder, chosen.count, form)
    prefix = f"s3://{BUCKET}/"
    remote = [
        {key: value.replace(f"{folder}/", prefix) for key, value in case.items()} for case in local
    ]
    settings = {**of_server, "VOXPIPE_REMOTE": client}
    idle, here, there, requests, megabytes, serving = [], [], [], [], [], []
    for _ in range(chosen.rounds):
        before, cpu = _counts(of_server), processes.cpu_seconds([server])
        there.append(_measured(chosen, remote, settings))
        after, patches = _counts(of_server), there[-1]["patches"]
        serving.append(1000 * (processes.cpu_seconds([server]) - cpu) / patches)
        requests.append((after["requests"] - before["requests"]) / patches)
        megabytes.append((after["bytes"] - before["bytes"]) / patches / throughput.MB)
        with processes.neighbour(serving[-1] / 1000 * there[-1]["rate"]):
            here.append(_measured(chosen, local, {}))
        idle.append(_measured(chosen, local, {}))
    asked, size = statistics.median(requests), statistics.median(megabytes) * throughput.MB
    bare = asked * _bare_cpu_ms(folder, form, round(size / asked), of_server)
    rates = [statistics.median(run["rate"] for run in runs) for runs in (idle, here, there)]
    firsts = [statistics.median(run["first"] for run in runs) for runs in (idle, there)]
    costs = [statistics.median(run["cpu_ms"] for run in runs) for runs in (idle, there)]
    peaks = [
        max((run["peak"] for run in runs), key=lambda memory: memory.total)
        for runs in (idle, there)
    ]
    for peak in peaks:
        print(f"<!-- {processes.as_text(peak)} -->", file=sys.stderr)
    ratio, peak_mb = rates[2] / rates[1], peaks[1].total / throughput.MB
    text = f"{form} by {client} from a bucket has {ratio:.2f} of the local rate"
    print(results.at_least(ratio, promises.BUCKET, text), file=sys.stderr)
    text = f"peak of all processes {peak_mb:.0f} MB"
    print(results.at_most(peak_mb, promises.BUCKET_PEAK_MB, text, " MB"), file=sys.stderr)
    return [
        form,
        client,
        ", ".join(f"{rate:.1f}" for rate in rates),
        f"{statistics.median(serving) / 1000 * rates[2]:.2f}",
        f"{ratio:.2f}, {rates[2] / rates[0]:.2f}",
        f"{statistics.median(requests):.1f}",
        f"{statistics.median(megabytes):.1f}",
        f"{firsts[0]:.2f}, {firsts[1]:.2f}",
        f"{costs[0]:.1f}, {costs[1]:.1f}, {statistics.median(serving):.1f}",
        f"{bare:.1f}, {costs[0] / (costs[0] + bare):.2f}",
        ", ".join(processes.parts_as_text(peak) for peak in peaks),
    ]


def _bare_cpu_ms(folder: Path, form: str, size: int, of_server: dict[str, str]) -> float:
    """Return the processor time of one request by obstore alone, in ms."""
    keys = [
        str(file.relative_to(folder))
        for file in sorted(folder.rglob("c/**/*"))
        if f".{form}." in str(file) and file.is_file() and file.stat().st_size >= size
    ]
    job = json.dumps({"keys": keys, "size": size})
    found = processes.run([sys.executable, __file__, "--bare", job], of_server).answer()
    return float(found)


def bare_cpu_ms(keys: list[str], size: int) -> float:
    """Ask for ranges of some objects as plainly as obstore can; return ms of CPU of each."""
    from obstore.store import S3Store

    from voxpipe.storage.in_flight import MOST_REQUESTS

    store = S3Store(
        BUCKET,
        endpoint=os.environ["AWS_ENDPOINT_URL"],
        client_options={"allow_http": True, "pool_max_idle_per_host": str(MOST_REQUESTS)},
        virtual_hosted_style_request=False,
    )
    draws = random.Random(0)
    asked = [draws.choice(keys) for _ in range(BARE_REQUESTS)]

    def get(key: str) -> int:
        return len(store.get_range(key, start=0, length=size))

    with ThreadPoolExecutor(MOST_REQUESTS) as threads:
        list(threads.map(get, asked[:MOST_REQUESTS]))  # connections and threads are there then
        start = time.process_time()
        assert sum(threads.map(get, asked)) == size * len(asked)
        return 1000 * (time.process_time() - start) / len(asked)


def _measured(
    chosen: argparse.Namespace, cases: list[dict[str, str]], settings: dict[str, str]
) -> Any:
    job = {
        "cases": cases * chosen.visits,
        "workers": chosen.workers,
        "seconds": chosen.seconds,
        "size": chosen.size,
        "samples_per_volume": throughput.SAMPLES_PER_VOLUME,
        "batch": throughput.BATCH,
    }
    command = [sys.executable, throughput.__file__, "--measure", "rate", "--job", json.dumps(job)]
    finished = processes.run(command, settings)
    return {**finished.answer(), "peak": finished.peak}


@contextmanager
def _server(root: Path, latency: float, bandwidth: float) -> Iterator[tuple[dict[str, str], int]]:
    """Serve ``root`` from a process of its own; yield a client's variables, and its id."""
    command = [sys.executable, str(SERVER), str(root)]
    command += ["--latency", str(latency), "--bandwidth", str(bandwidth)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        try:
            server.stdout.readline()  # the URL, which the variables hold too
            yield json.loads(server.stdout.readline()), server.pid
        finally:
            server.stdin.close()


def _counts(of_server: dict[str, str]) -> dict[str, int]:
    named = {"Authorization": f"Credential={of_server['AWS_ACCESS_KEY_ID']}/"}
    asked = urllib.request.Request(f"{of_server['AWS_ENDPOINT_URL']}/-/counts", headers=named)
    with urllib.request.urlopen(asked) as answer:
        found: dict[str, int] = json.load(answer)
    return found


if __name__ == "__main__":
    main()
