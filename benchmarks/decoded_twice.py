"""Voxels that several workers decode, each for itself: what a cache that they share could spare.

    python benchmarks/decoded_twice.py
    python benchmarks/decoded_twice.py --workers 2 4 8 --samples 4

Cases are shuffled and visited one by one, or all patches are shuffled after ``lazy_patch``. The
least is what one process decodes with the memory of all workers together. Bytes are counted over
one epoch, so a busy machine does not matter; which worker gets a batch depends on their pace.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import machine
import phantom
import processes

import voxpipe as vp

BATCH = 4
MEMORY = (None, 2 * 2**30)
"""``memory_bytes`` of the service: the default, and what who caches on purpose would give."""
QUICK = {"shape": (48, 48, 40), "size": 16, "count": 2, "workers": (1,)}


class _Service(vp.MultiProcessingReadingService):
    """Lets each process keep as many bytes of chunks as it is told."""

    cache: int | None = None
    used: ClassVar[list[int]] = [0]  # of copies, too: a loader copies its service

    def epoch(self, work: Any, *run: Any) -> Any:
        """Begin an epoch with other memory for chunks."""
        if self.cache is not None:
            work = replace(work, cache_bytes=self.cache)
        self.used[0] = work.cache_bytes
        return super().epoch(work, *run)


def main() -> None:
    chosen = _arguments()
    print("## Decoded twice\n")
    print(machine.describe())
    print(
        f"- {chosen.count} cases of {'x'.join(map(str, chosen.shape))} as {chosen.format}, patches "
        f"of {chosen.size}^3, {chosen.samples} a visit, batches of {BATCH}\n"
    )
    print("| order | memory | workers | MiB kept by each | MB/patch decoded | least | twice |")
    print("|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory(prefix="voxpipe-bench-") as name:
        writer = [sys.executable, phantom.__file__, name, "--count", str(chosen.count)]
        writer += ["--shape", *map(str, chosen.shape), "--formats", chosen.format]
        processes.run(writer)
        cases = phantom.cases(Path(name), chosen.count, chosen.format)
        for shuffles in (False, True):
            for memory in MEMORY:
                for workers in chosen.workers:
                    kept, decoded = epoch(chosen, cases, shuffles, workers, memory)
                    least = epoch(chosen, cases, shuffles, 1, memory, kept * workers)[1]
                    cells = (
                        "patches" if shuffles else "visits",
                        "default" if memory is None else f"{memory / 2**30:g} GiB",
                        str(workers),
                        f"{kept / 2**20:.0f}",
                        f"{decoded:.2f}",
                        f"{least:.2f}",
                        f"{1 - least / decoded:.1%}",
                    )
                    print("| " + " | ".join(cells) + " |", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    formats = [name for name in phantom.FORMATS if not name.startswith("nii")]
    parser.add_argument("--format", choices=formats, default="shard128")
    parser.add_argument("--workers", type=int, nargs="+", default=(2, 4))
    parser.add_argument("--samples", type=int, default=8, help="patches of each visit to a case")
    parser.add_argument("--size", type=int, default=96, help="edge of a patch, in voxels")
    parser.add_argument("--shape", type=int, nargs=3, default=(320, 320, 256))
    parser.add_argument("--count", type=int, default=16, help="number of cases")
    parser.add_argument("--quick", action="store_true", help="tiny, to see that it runs")
    chosen = parser.parse_args()
    if chosen.quick:
        vars(chosen).update(QUICK)
    return chosen


def epoch(
    chosen: argparse.Namespace,
    cases: list[dict[str, str]],
    shuffles: bool,
    workers: int,
    memory: int | None,
    cache: int | None = None,
) -> tuple[int, float]:
    """Return the bytes of chunks that each process keeps, and the MB decoded per patch."""
    pipe: Any = vp.from_cases(cases).shuffle().open_volume()
    pipe = pipe.lazy_patch(chosen.size, samples_per_volume=chosen.samples)
    pipe = pipe.augment(rotate=(-15, 15), zoom=(0.9, 1.1), flip=0.5)
    pipe = (pipe.shuffle() if shuffles else pipe).batch_patches(BATCH)
    service = _Service(workers, threads_per_worker=1, memory_bytes=memory)
    service.cache = cache
    profile = vp.Profile()
    with vp.DataLoader2(pipe, [profile], service, seed=1) as loader:
        patches = sum(len(batch["meta"]) for batch in loader)
    decoded = sum(row["bytes_decoded"] for row in profile.to_json())
    return service.used[0], decoded / patches / 1e6


if __name__ == "__main__":
    main()
