"""What a batch costs the training loop: from the worker's message to tensors.

    python benchmarks/transport.py
    python benchmarks/transport.py --size 64 --batches 20

One worker each makes batches of 4 image (float32) and label (uint8) patches of 96^3, and is given
the time to be ahead. Then one ``next()`` is timed, for one way of travelling after the other:
voxpipe's slots, torch's ``DataLoader`` with its own shared memory, and a plain pipe. voxpipe's
``next()`` also plans the next batch and sends it off; what of it is transport, from the worker's
message to tensors, is told apart. ``PASS`` if the median of that with slots is below the limit,
else ``FAIL`` and exit status 1. ``--quick`` judges nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import machine
import phantom
import promises
import torch

import voxpipe as vp
from voxpipe.reading_services.workers.pool import Worker, WorkerPool

BATCH = 4
SEED = 0
PAUSE = 0.1
"""Seconds for the workers to be ahead again; a batch takes them about a third of it."""
MARGIN = 32
"""How much larger the volume is than a patch, in voxels."""
WARM_UP = 4
"""Batches of each that are not counted: workers start, slots are made."""
COLUMNS = ("what", "transport ms", "fastest and slowest tenth", "ratio", "next() ms", "reading ms")


class Made(torch.utils.data.Dataset[Any]):
    """Batches that are made with next to no work, for torch's loader."""

    def __init__(self, size: int, count: int) -> None:
        self.size, self.count = size, count

    def __len__(self) -> int:
        """Return the number of batches."""
        return self.count

    def __getitem__(self, number: int) -> dict[str, Any]:
        """Return a batch with ``number`` in every voxel."""
        shape = (BATCH, 1, self.size, self.size, self.size)
        image = torch.full(shape, float(number))
        return {"image": image, "label": image.to(torch.uint8), "meta": [{"number": number}] * 4}


class Clock:
    """Adds up the time in which voxpipe takes messages and makes tensors of them."""

    def __init__(self) -> None:
        self.seconds = 0.0
        received, opened = WorkerPool._receive, Worker.open

        def timed_received(pool: WorkerPool, worker: Worker, *, ends: bool) -> Iterator[Any]:
            start = time.perf_counter()
            answers = list(received(pool, worker, ends=ends))
            self.seconds += time.perf_counter() - start
            yield from answers

        def timed_open(worker: Worker, data: bytes) -> Any:
            start = time.perf_counter()
            batch = opened(worker, data)
            self.seconds += time.perf_counter() - start
            return batch

        WorkerPool._receive = timed_received  # type: ignore[method-assign]
        Worker.open = timed_open  # type: ignore[method-assign]


class Timed:
    """One way of travelling, and how long its batches took.

    Parameters
    ----------
    what
        Its name.
    batches
        What ``next()`` is called on.
    clock
        What counts the transport; without one all of ``next()`` does.
    """

    def __init__(self, what: str, batches: Iterator[Any], clock: Clock | None = None) -> None:
        self.what = what
        self.batches = batches
        self.clock = clock
        self.transport_ms: list[float] = []
        self.next_ms: list[float] = []
        self.read_ms: list[float] = []
        self.digests: list[str] = []
        self.bytes = 0

    def take(self) -> None:
        """Time one batch, and the first reading of all its voxels."""
        before = self.clock.seconds if self.clock is not None else 0.0
        start = time.perf_counter()
        batch = next(self.batches)
        taken = time.perf_counter()
        batch["image"].sum(), batch["label"].max()
        read = time.perf_counter()
        spent = self.clock.seconds - before if self.clock is not None else taken - start
        self.transport_ms.append(spent * 1e3)
        self.next_ms.append((taken - start) * 1e3)
        self.read_ms.append((read - taken) * 1e3)
        self.bytes = batch["image"].nbytes + batch["label"].nbytes
        self.digests.append(hashlib.blake2b(batch["image"].numpy()).hexdigest())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=96, help="edge of a patch, in voxels")
    parser.add_argument("--batches", type=int, default=50, help="timed batches of each")
    parser.add_argument("--limit-ms", type=float, default=promises.CONSUMER_MS)
    parser.add_argument(
        "--quick", action="store_true", help="tiny, to see that it runs; judges nothing"
    )
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.size, chosen.batches = 16, 3
    # The consumer of a training loop has its cores for itself, more or less.
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="voxpipe-bench-") as folder:
        rows = measured(Path(folder), chosen.size, chosen.batches)
    slots, _, pipe = rows
    if slots.digests != pipe.digests:
        raise SystemExit("batches out of slots and out of a pipe differ")
    print("## Transport\n")
    print(machine.describe())
    print(
        f"- {BATCH} patches of {chosen.size}^3, {slots.bytes / 1e6:.1f} MB a batch, one worker; "
        f"medians of {chosen.batches} batches, in turn; limit {chosen.limit_ms:g} ms\n"
    )
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))
    typical = statistics.median(slots.transport_ms[WARM_UP:])
    for row in rows:
        print("| " + " | ".join(_cells(row, typical)) + " |")
    if chosen.quick:
        return
    passed = typical < chosen.limit_ms
    print("\n" + ("PASS" if passed else "FAIL"))
    if not passed:
        raise SystemExit(1)


def _cells(row: Timed, typical: float) -> list[str]:
    times = sorted(row.transport_ms[WARM_UP:])
    tenth = len(times) // 10
    median = statistics.median(times)
    return [
        row.what,
        f"{median:.3f}",
        f"{times[tenth]:.3f} to {times[-1 - tenth]:.3f}",
        f"{median / typical:.1f}",
        f"{statistics.median(row.next_ms[WARM_UP:]):.2f}",
        f"{statistics.median(row.read_ms[WARM_UP:]):.1f}",
    ]


def measured(folder: Path, size: int, count: int) -> list[Timed]:
    """Time ``count`` batches of each way of travelling, in turn."""
    count += WARM_UP
    chain = patches(folder, size, count)
    clock = Clock()
    rows = [
        Timed("voxpipe, slots", iter(_loader(chain)), clock),
        Timed("torch DataLoader", iter(_torch_loader(size, count))),
        Timed("voxpipe, pipe", iter(_loader(chain, slot_bytes=0)), clock),
    ]
    for _ in range(count):
        for row in rows:
            time.sleep(PAUSE)
            row.take()
    return rows


def patches(folder: Path, size: int, count: int) -> Any:
    """Write one case and return ``count`` batches of rotated patches of it."""
    phantom.write_cases(folder, 1, (size + MARGIN,) * 3, ["nii"])
    pipe = vp.from_cases(phantom.cases(folder, 1, "nii")).open_volume()
    pipe = pipe.lazy_patch(size, samples_per_volume=BATCH * count)
    return pipe.augment(rotate=(-15, 15), zoom=(0.9, 1.1), flip=0.5).batch_patches(BATCH)


def _loader(chain: Any, **options: Any) -> Any:
    service = vp.MultiProcessingReadingService(1, **options)
    return vp.DataLoader2(chain, None, service, seed=SEED)


def _torch_loader(size: int, count: int) -> Any:
    made = Made(size, count)
    return torch.utils.data.DataLoader(
        made, batch_size=None, num_workers=1, multiprocessing_context="forkserver"
    )


if __name__ == "__main__":
    main()
