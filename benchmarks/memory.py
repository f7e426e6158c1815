"""Peak memory of an epoch of rotated patches out of a volume of 4 GB, against a limit.

    python benchmarks/memory.py
    python benchmarks/memory.py --formats zarr --size 64 --limit-mb 600

64 patches, spread over the whole volume, with two workers: ``PASS`` if all processes together
never take more than the limit, else ``FAIL`` and exit status 1. ``--quick`` judges nothing.

The volume is sparse: a header (.nii) or metadata (zarr), and nothing else but what the patches
touch. Which voxels these are is known beforehand, because a plan is a function of seed and
epoch: the writer makes the very same chain, asks each patch for its source region, and writes a
scan there. So every voxel that is read was written, and patches are still drawn from everywhere.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import machine
import phantom
import processes
import promises

BATCH = 2  # what nnU-Net plans for patches of this size
SEED = 0
CHUNK = 64
MB = 10**6
"""What the whole tree of processes may take, torch in each of them included."""
SHAPE = (1280, 1280, 1280)
"""4.19 GB of int16."""
ITEM_BYTES = 2
NIFTI_HEADER = 352
"""Bytes before the voxels of a single-file NIfTI-1 without extensions."""
QUICK = {"shape": (48, 48, 40), "size": 16, "patches": 8, "workers": 1}
"""What ``--quick`` sets, whatever else is given."""
COLUMNS = ("what", "peak MB", "anonymous", "shared", "mapped", "patches", "result")


def main() -> None:
    chosen = _arguments()
    if chosen.measure:
        print(json.dumps(MEASURES[chosen.measure](json.loads(chosen.job))))
        return
    processes.require_linux()
    voxels = ITEM_BYTES * chosen.shape[0] * chosen.shape[1] * chosen.shape[2]
    print("## Memory\n")
    print(machine.describe())
    print(
        f"- one volume of {'x'.join(map(str, chosen.shape))} int16, {voxels / 1e9:.2f} GB; "
        f"{chosen.patches} patches of {chosen.size}^3, rotated by up to 15 degrees, "
        f"{chosen.workers} workers; limit {chosen.limit_mb:g} MB\n"
    )
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS), flush=True)
    passed = True
    for what in ("torch alone", "idle workers"):
        _say(what, processes.run(_command(what, {"workers": chosen.workers})))
    for name in chosen.formats:
        finished = _epoch(chosen, name)
        delivered = finished.answer()["patches"]
        fits = finished.peak.total <= chosen.limit_mb * MB and delivered == chosen.patches
        passed = passed and fits
        result = "" if chosen.quick else "PASS" if fits else "FAIL"
        _say(f"epoch from {name}", finished, str(delivered), result)
    if chosen.quick:
        return
    print("\n" + ("PASS" if passed else "FAIL"))
    if not passed:
        raise SystemExit(1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--formats", nargs="+", choices=WRITERS, default=tuple(WRITERS))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--size", type=int, default=96, help="edge of a patch, in voxels")
    parser.add_argument("--patches", type=int, default=64)
    parser.add_argument("--shape", type=int, nargs=3, default=SHAPE)
    parser.add_argument("--limit-mb", type=float, default=promises.ONE_VOLUME_PEAK_MB)
    parser.add_argument(
        "--quick", action="store_true", help="tiny, to see that it runs; judges nothing"
    )
    # How a row is measured in a process of its own.
    parser.add_argument("--measure", choices=MEASURES, help=argparse.SUPPRESS)
    parser.add_argument("--job", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.quick:
        vars(chosen).update(QUICK)
    return chosen


def _epoch(chosen: argparse.Namespace, name: str) -> processes.Finished:
    with tempfile.TemporaryDirectory(prefix="voxpipe-bench-") as folder:
        job = {
            "path": str(Path(folder) / f"large.{name}"),
            "shape": chosen.shape,
            "size": chosen.size,
            "patches": chosen.patches,
            "workers": chosen.workers,
        }
        processes.run(_command(f"write {name}", job))
        return processes.run(_command("epoch", job))


def _say(what: str, finished: processes.Finished, patches: str = "", result: str = "") -> None:
    peak = finished.peak
    sizes = (peak.total, peak.anonymous, peak.shared, peak.mapped)
    cells = [what, *(f"{size / MB:.0f}" for size in sizes), patches, result]
    print("| " + " | ".join(cells) + " |", flush=True)
    print(f"<!-- {processes.as_text(peak)}; {finished.samples} samples -->", file=sys.stderr)


def _command(measure: str, job: dict[str, Any]) -> list[str]:
    return [sys.executable, __file__, "--measure", measure, "--job", json.dumps(job)]


def chain(job: dict[str, Any]) -> Any:
    """Return the chain up to its descriptions; the same for the writer and the reader."""
    import voxpipe as vp

    return (
        vp.from_cases([{"image": job["path"]}])
        .shuffle()
        .open_volume()
        .lazy_patch(job["size"], samples_per_volume=job["patches"])
        .augment(rotate=(-15, 15), zoom=(0.9, 1.1), flip=0.5)
    )


def planned_regions(job: dict[str, Any]) -> Iterator[Any]:
    """Yield the source region of every patch of the epoch; reads the header, and no voxel."""
    import voxpipe as vp

    with vp.DataLoader2(chain(job), seed=SEED) as loader:
        yield from (sample["image"].source_region for sample in loader)


def write_nii(job: dict[str, Any]) -> None:
    """Write a sparse .nii: a header, the voxels that will be read, and holes."""
    import nibabel
    import numpy as np

    shape = tuple(job["shape"])
    header = nibabel.Nifti1Header()
    header.set_data_dtype(np.int16)
    header.set_data_shape(shape)
    header.set_sform(phantom.AFFINE, code=1)
    header["vox_offset"] = NIFTI_HEADER
    header["magic"] = b"n+1"
    with open(job["path"], "wb") as file:
        file.write(header.binaryblock)
        file.truncate(NIFTI_HEADER + ITEM_BYTES * shape[0] * shape[1] * shape[2])
    if job.get("rows"):
        _write_rows(job["path"], planned_regions(job), shape)
        return
    voxels = np.memmap(job["path"], np.int16, "r+", NIFTI_HEADER, shape, order="F")
    for region in planned_regions(job):
        voxels[region.slices] = _scan(region, shape)
    voxels.flush()


def _write_rows(path: str, regions: Iterator[Any], shape: Sequence[int]) -> None:
    """Write whole rows, plane by plane, as whoever writes a scan does.

    The system caches a file in the pieces in which it was written. Written patch by patch it
    would lie there in single pages, which no real file does, and each would have to be mapped.
    """
    import numpy as np

    from voxpipe.core import Region

    with open(path, "r+b", buffering=0) as file:
        for region in regions:
            (_, _), (j0, j1), (k0, k1) = region
            whole = _scan(Region((0, j0, k0), (shape[0], j1, k1)), shape)
            for k in range(k0, k1):
                file.seek(NIFTI_HEADER + ((k * shape[1] + j0) * shape[0]) * ITEM_BYTES)
                file.write(np.asfortranarray(whole[..., k - k0]).tobytes("F"))


def write_zarr(job: dict[str, Any]) -> None:
    """Write zarr metadata, and the chunks that will be read."""
    import numpy as np
    import zarr

    from voxpipe.core import ChunkGrid, Region

    shape = tuple(job["shape"])
    chunks = tuple(min(job.get("chunk", CHUNK), n) for n in shape)
    stored = zarr.create_array(job["path"], shape=shape, chunks=chunks, dtype="int16")
    grid = ChunkGrid(shape, chunks)
    touched = {
        tuple(chunk)
        for region in planned_regions(job)
        for chunk in grid.touched_parts(region).tolist()
    }
    for chunk in sorted(touched):
        (start,), (stop,) = grid.bounds(np.array([chunk]))
        region = Region(start, stop)
        stored[region.slices] = _scan(region, shape)


def _scan(region: Any, shape: Sequence[int]) -> Any:
    import numpy as np

    return phantom.scan(region.shape, np.random.default_rng(region.start), shape, region.start)[0]


def measure_epoch(job: dict[str, Any]) -> dict[str, int]:
    """Run one epoch and return how many patches with voxels in them arrived."""
    import voxpipe as vp

    service = vp.MultiProcessingReadingService(job["workers"])
    seen = set()
    pipe = chain(job).batch_patches(BATCH)
    with vp.DataLoader2(pipe, None, service, seed=SEED) as loader:
        for batch in loader:
            for patch, origin in zip(batch["image"], batch["meta"], strict=True):
                # A hole or a missing chunk reads as zeros, noise never does.
                if patch.min() < patch.max():
                    seen.add(tuple(origin["identity"]))
    return {"patches": len(seen)}


def measure_idle(job: dict[str, Any]) -> dict[str, int]:
    """Run the same loader on a volume of a few bytes: what the libraries take."""
    import numpy as np

    import voxpipe as vp

    pipe = vp.from_cases([{"image": np.ones((4, 4, 4), np.int16)}]).open_volume()
    pipe = pipe.lazy_patch(2, samples_per_volume=4 * BATCH).augment(rotate=(-15, 15))
    service = vp.MultiProcessingReadingService(job["workers"])
    with vp.DataLoader2(pipe.batch_patches(BATCH), None, service) as loader:
        return {"patches": sum(len(batch["meta"]) for batch in loader)}


def measure_torch(job: dict[str, Any]) -> dict[str, int]:
    """Start as many workers from a fork server with torch in it, without voxpipe."""
    import multiprocessing
    import time

    import torch  # noqa: F401

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch"])
    # Long enough to be seen several times.
    workers = [context.Process(target=time.sleep, args=(1.0,)) for _ in range(job["workers"])]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return {"patches": 0}


WRITERS = {"nii": write_nii, "zarr": write_zarr}
MEASURES = {
    "torch alone": measure_torch,
    "idle workers": measure_idle,
    "epoch": measure_epoch,
    **{f"write {name}": write for name, write in WRITERS.items()},
}


if __name__ == "__main__":
    main()
