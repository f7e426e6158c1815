"""Bytes and requests per patch, against the voxels that interpolation cannot do without.

    python benchmarks/io.py
    python benchmarks/io.py --formats nii zarr32 --size 64

Counts, no times: they are the same on every machine. Patches are image and label of 96^3,
rotated, zoomed and flipped as in throughput.py. The exact support is counted voxel by voxel: those
that a tap of the interpolation with a weight above 0 falls on. What is read beyond it is what
regions that are boxes, chunks that are whole, and requests that join neighbours cost.

Requests are counted where they arrive: in a store under zarr, in a file system under the URL.
A mapped file has none; there the bytes are those of the region.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import machine
import numpy as np
import phantom
import processes
from numpy.typing import NDArray

KEYS = ("image", "label")
SAMPLES_PER_VOLUME = 8
SEED = 0
MB = 10**6
PROTOCOL = "counted"
FORMATS = ("nii", "nii by URL", "nii.gz", "zarr64", "zarr32")
COLUMNS = (
    "format",
    "patches",
    "exact support MB",
    "regions MB",
    "regions / exact",
    "stored MB asked for",
    "requests/patch",
    "decoded MB",
    "decoded / exact",
)


@dataclass
class Traffic:
    """What arrived at the counting stores since the count began."""

    requests: int = 0
    """Ranges or chunks asked for."""
    bytes: int = 0
    """Bytes of the answers, as they are stored."""


TRAFFIC = Traffic()


class CountedFiles(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Local files behind URLs, so that they are read by ranges; every answer is counted."""

    protocol = PROTOCOL
    cachable = False

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        place = self._strip_protocol(path)
        return {"name": place, "size": os.stat(place).st_size, "type": "file"}

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_: Any
    ) -> bytes:
        with open(self._strip_protocol(path), "rb") as file:
            file.seek(start or 0)
            found = file.read(-1 if end is None else end - (start or 0))
        TRAFFIC.requests += 1
        TRAFFIC.bytes += len(found)
        return found


def counted_store(path: str) -> Any:
    """Return the zarr store of a folder that counts the chunks asked for."""
    from zarr.storage import LocalStore, WrapperStore

    class Counting(WrapperStore):  # type: ignore[type-arg]
        async def get(self, key: str, prototype: Any, byte_range: Any = None) -> Any:
            found = await super().get(key, prototype, byte_range)
            if found is not None:
                TRAFFIC.requests += 1
                TRAFFIC.bytes += len(found)
            return found

        def _with_store(self, store: Any) -> Any:
            return type(self)(store)

    return Counting(LocalStore(path, read_only=True))


QUICK = {"shape": (70, 60, 50), "size": 16, "count": 1}
"""What ``--quick`` sets, whatever else is given."""


def main() -> None:
    chosen = _arguments()
    fsspec.register_implementation(PROTOCOL, CountedFiles)
    print("## Bytes and requests\n")
    print(machine.describe())
    print(
        f"- {chosen.count} cases of {'x'.join(map(str, chosen.shape))}, patches of {chosen.size}^3 "
        "(image int16, label uint8 together); MB per patch\n"
    )
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))
    with tempfile.TemporaryDirectory(prefix="voxpipe-bench-") as name:
        os.environ["VOXPIPE_CACHE"] = str(Path(name) / "cache")
        writer = [sys.executable, phantom.__file__, name, "--count", str(chosen.count)]
        stored = {form.partition(" ")[0] for form in chosen.formats}
        processes.run([*writer, "--shape", *map(str, chosen.shape), "--formats", *sorted(stored)])
        for form in chosen.formats:
            cells = _row(form, chosen, Path(name))
            print("| " + " | ".join(cells) + " |", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=FORMATS)
    parser.add_argument("--size", type=int, default=96, help="edge of a patch, in voxels")
    parser.add_argument("--shape", type=int, nargs=3, default=(320, 320, 256))
    parser.add_argument("--count", type=int, default=2, help="number of cases")
    parser.add_argument(
        "--quick", action="store_true", help="tiny, to see that it runs; judges nothing"
    )
    chosen = parser.parse_args()
    if chosen.quick:
        vars(chosen).update(QUICK)
    return chosen


def _row(form: str, chosen: argparse.Namespace, folder: Path) -> list[str]:
    import voxpipe as vp
    from voxpipe.core import TALLY

    cases = _cases(form, folder, chosen.count)
    described = (
        vp.from_cases(cases)
        .open_volume()
        .lazy_patch(chosen.size, samples_per_volume=SAMPLES_PER_VOLUME)
        .augment(rotate=(-15, 15), zoom=(0.9, 1.1), flip=0.5)
    )
    exact = regions = patches = 0
    # Headers are read here, and .nii.gz is decoded: what follows is patches alone.
    with vp.DataLoader2(described, seed=SEED) as loader:
        for sample in loader:
            patches += 1
            for key in KEYS:
                size = np.dtype(sample[key].volume.dtype).itemsize
                exact += size * exact_voxels(sample[key])
                regions += size * int(np.prod(sample[key].source_region.shape))
    for case in cases:
        for key in KEYS:
            vp.Volume(case[key]).read(vp.Region((0, 0, 0), (1, 1, 1)))
    TRAFFIC.requests = TRAFFIC.bytes = 0
    before = TALLY.snapshot()
    with vp.DataLoader2(described.batch_patches(1), [vp.FuseSpatial()], seed=SEED) as loader:
        assert patches == sum(len(batch["meta"]) for batch in loader)
    decoded = (TALLY - before).bytes_read
    counted = form not in ("nii", "nii.gz")
    return [
        form,
        str(patches),
        *_megabytes(patches, exact, regions),
        f"{regions / exact:.2f}",
        *(_megabytes(patches, TRAFFIC.bytes) if counted else ["mapped"]),
        f"{TRAFFIC.requests / patches:.1f}" if counted else "mapped",
        *_megabytes(patches, decoded),
        f"{decoded / exact:.2f}",
    ]


def _cases(form: str, folder: Path, count: int) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = list(phantom.cases(folder, count, form.partition(" ")[0]))
    for case in cases:
        for key in KEYS:
            if form.startswith("zarr"):
                case[key] = counted_store(case[key])
            elif form == "nii by URL":
                case[key] = f"{PROTOCOL}://{case[key]}"
    return cases


def _megabytes(patches: int, *amounts: int) -> list[str]:
    return [f"{amount / patches / MB:.3f}" for amount in amounts]


def exact_voxels(patch: Any) -> int:
    """Return how many voxels of the volume have a weight above 0 in some voxel of a patch.

    Independent of how voxpipe finds regions: all output voxels go through the matrix, and each
    tap is marked in an array of the volume's shape.
    """
    matrix, shape = patch.plan.matrix, patch.plan.shape
    whole = patch.volume.shape[1:]
    seen = np.zeros(whole, bool)
    j, k = (axis.ravel() for axis in np.mgrid[: shape[1], : shape[2]])
    for i in range(shape[0]):
        # From an outer plane of the patch to the next, so that memory stays small.
        index = np.stack([np.full_like(j, i), j, k])
        points = matrix[:3, :3] @ index + matrix[:3, 3:]
        if patch.policy.mode == "nearest":
            _mark(seen, np.rint(points).astype(np.int64), patch.policy.padding)
            continue
        low = np.floor(points).astype(np.int64)
        for corner in np.ndindex(2, 2, 2):
            step = np.array(corner)[:, None]
            weighs = ((points > low) | (step == 0)).all(axis=0)
            _mark(seen, (low + step)[:, weighs], patch.policy.padding)
    return int(np.count_nonzero(seen))


def _mark(seen: NDArray[np.bool_], taps: NDArray[np.int64], padding: str) -> None:
    last = np.array(seen.shape)[:, None] - 1
    if padding == "border":
        taps = np.clip(taps, 0, last)
    else:
        taps = taps[:, ((taps >= 0) & (taps <= last)).all(axis=0)]
    seen[tuple(taps)] = True


if __name__ == "__main__":
    main()
