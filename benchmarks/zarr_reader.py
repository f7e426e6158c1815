"""Reading regions of zarr: voxpipe's own reader against zarr-python, as ratios.

    python benchmarks/zarr_reader.py
    python benchmarks/zarr_reader.py --rounds 3

Straight and turned regions of 96^3 at random places of an int16 volume of 320x320x256, in
chunks of 64^3 and in shards of 128^3 that hold chunks of 32^3. The readers take turns
within one run and the median is compared, because other work on a machine comes and goes. No
chunk is kept between reads, and the files lie in the page cache. voxpipe reads in one
thread and zarr-python may use several, so the ratio of processor time is given too: it says what
a machine gains whose workers fill all cores.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import machine
import numpy as np
import phantom

from voxpipe.core import Grid, Region
from voxpipe.spatial import SpatialPlan
from voxpipe.spatial.plans.pull_back import source_box
from voxpipe.storage.file_reader import LocalRanges
from voxpipe.volumes.chunks.chunk_cache import ChunkCache
from voxpipe.volumes.formats.zarr_array import open_node

SHAPE = (320, 320, 256)
SIZE = (96, 96, 96)
LAYOUTS: dict[str, dict[str, Any]] = {
    "chunks of 64^3": {"chunks": (64,) * 3},
    "chunks of 32^3 in shards of 128^3": {"chunks": (32,) * 3, "shards": (128,) * 3},
}
ANGLES = (15.0, 10.0, 20.0)
"""Degrees, about the three axes; the middle of what augmentation draws."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15, help="reads of each kind")
    chosen = parser.parse_args()
    print("## Zarr: voxpipe's reader against zarr-python\n")
    print(machine.describe())
    print(
        "\n| layout | codec | region | ms | zarr-python ms | ratio | CPU ratio | chunks read |"
        "\n|---|---|---|---|---|---|---|---|"
    )
    with tempfile.TemporaryDirectory(prefix="voxpipe-bench-") as name:
        for layout, how in LAYOUTS.items():
            for codec, compressors in codecs().items():
                path = Path(name) / f"{layout} {codec}".replace(" ", "-")
                write(path, compressors=compressors, **how)
                for turned in (False, True):
                    row = measure(path, turned, chosen.rounds)
                    print(f"| {layout} | {codec} | {'turned' if turned else 'straight'} | {row} |")


def codecs() -> dict[str, Any]:
    """Return compressors by name."""
    from zarr.codecs import BloscCodec, ZstdCodec

    return {
        "blosc lz4": [BloscCodec(cname="lz4", clevel=5, shuffle="shuffle")],
        "blosc zstd": [BloscCodec(cname="zstd", clevel=5, shuffle="shuffle")],
        "zstd": [ZstdCodec(level=3)],
        "none": None,
    }


def write(path: Path, **how: Any) -> None:
    """Write the volume with zarr-python."""
    import zarr

    array = zarr.create_array(path, shape=SHAPE, dtype="int16", **how)
    array[...] = phantom.scan(SHAPE, np.random.default_rng(0), SHAPE, (0, 0, 0))[0]


def measure(path: Path, turned: bool, rounds: int) -> str:
    """Return the cells of one row; both readers are asked for the same places in turn."""
    import zarr

    ours = open_node(LocalRanges(str(path)), path.name, ChunkCache(0), "bench")
    theirs = zarr.open_array(path, mode="r")
    spent: dict[str, list[tuple[float, float]]] = {"ours": [], "theirs": []}
    needed = bounds = 0
    for region in jobs(turned, rounds + 1):
        spent["ours"].append(timed(lambda r=region: ours.read(r)))
        spent["theirs"].append(timed(lambda r=region: theirs[r.slices]))
        needed += len(ours.needed_chunks(region))
        bounds += len(ours.needed_chunks(region.pad(0)))
    # The first read opens what later ones find open.
    (mine, cpu), (other, other_cpu) = (
        [statistics.median(column) * 1e3 for column in zip(*times[1:], strict=True)]
        for times in spent.values()
    )
    ratios = f"{other / mine:.1f} | {other_cpu / cpu:.1f}"
    return f"{mine:.1f} | {other:.1f} | {ratios} | {needed / bounds:.0%}"


def timed(read: Callable[[], Any]) -> tuple[float, float]:
    """Return the seconds that a call takes, and the processor time of all threads."""
    start, cpu = time.perf_counter(), time.process_time()
    read()
    return time.perf_counter() - start, time.process_time() - cpu


def jobs(turned: bool, count: int) -> list[Region]:
    """Return regions of patches at random places, with the boxes in which their taps lie."""
    generator = np.random.default_rng(0)
    grid = Grid(SHAPE, np.eye(4))
    found: list[Region] = []
    for _ in range(count):
        centre = [generator.uniform(n / 2, m - n / 2) for n, m in zip(SIZE, SHAPE, strict=True)]
        matrix = np.eye(4)
        matrix[:3, :3] = rotation(ANGLES) if turned else np.eye(3)
        matrix[:3, 3] = np.array(centre) - matrix[:3, :3] @ ((np.array(SIZE) - 1) / 2)
        plan = SpatialPlan(grid, matrix, SIZE)
        region, place = plan.source_region(), (plan.rows, plan.shape, plan.bounds)
        box = source_box(*place, "linear", "border") if turned else None
        found.append(Region(region.start, region.stop, box))
    return found


def rotation(degrees: tuple[float, float, float]) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return the turn about the three axes, one after another."""
    matrix = np.eye(3)
    for axis, angle in enumerate(np.deg2rad(degrees)):
        i, j = (n for n in range(3) if n != axis)
        turn = np.eye(3)
        turn[i, i] = turn[j, j] = np.cos(angle)
        turn[i, j], turn[j, i] = -np.sin(angle), np.sin(angle)
        matrix = matrix @ turn
    return matrix


if __name__ == "__main__":
    main()
