"""Seconds from a saved state deep in an epoch to its first batch.

    python benchmarks/resuming.py
    python benchmarks/resuming.py --patch 100000

A catalog of volumes that are all holes, so that nothing is measured but the way there: names of all
cases, and headers of the volumes that the first batch touches.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

import machine
import numpy as np

import voxpipe as vp
from voxpipe.core import IO_COUNTERS

PROMISE = 5.0  # seconds
PER_VOLUME = 8
BATCH = 4
SIZE = 16
VOLUME = (64, 64, 64)


def main() -> None:
    chosen = _arguments()
    print("## Resuming\n")
    print(machine.describe())
    with tempfile.TemporaryDirectory(prefix="voxpipe-bench-") as folder:
        chain = _chain(Path(folder), 2 * chosen.patch // PER_VOLUME)
        with vp.DataLoader2(chain, seed=7) as loader:
            state = {**loader.state_dict(), "next_batch": chosen.patch // BATCH}
            print(f"- a state of {len(json.dumps(state))} bytes at patch {chosen.patch}\n")
            loader.load_state_dict(state)
            before, began = IO_COUNTERS.snapshot(), time.perf_counter()
            next(iter(loader))
            seconds, done = time.perf_counter() - began, IO_COUNTERS - before
    print(
        f"first batch after {seconds:.2f} s (promised: {PROMISE:g}), reading {done.reads} regions"
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--patch", type=int, default=100_000, help="where the state stands")
    return parser.parse_args()


def _chain(folder: Path, count: int) -> vp.DataPipe:
    # One file under many names: cases are told apart by their paths.
    volume = folder / "volume.npy"
    np.lib.format.open_memmap(volume, "w+", np.int16, VOLUME)
    for n in range(count):
        (folder / f"case{n:06d}.npy").symlink_to(volume)
    cases = [{"image": str(folder / f"case{n:06d}.npy")} for n in range(count)]
    opened = vp.from_cases(cases).shuffle().open_volume()
    patches = opened.lazy_patch(SIZE, samples_per_volume=PER_VOLUME).shuffle(buffer_size=1000)
    return patches.augment(rotate=(-15, 15), flip=0.5).batch_patches(BATCH)


if __name__ == "__main__":
    main()
