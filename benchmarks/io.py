"""Bytes and requests per patch, against the voxels that interpolation cannot do without.

    python benchmarks/io.py
    python benchmarks/io.py --formats nii zarr32 --size 64

Counts, no times: they are the same on every machine. Patches are image and label of 96^3,
rotated, zoomed and flipped as in throughput.py. The exact support is counted voxel by voxel: those
that a tap of the interpolation with a weight above 0 falls on. What is read beyond it is what
regions that are boxes, chunks that are whole, and requests that join neighbours cost.

Requests are counted where they arrive: at the files under zarr, in a file system under the URL.
A mapped file has none; there the bytes are those of the region. The cover is all chunks that
hold a voxel of the exact support: what has to be decoded. Chunks of b2nd are its blocks.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import machine
import numpy as np
import phantom
import processes
from numpy.typing import NDArray

from voxpipe.storage.file_reader import LocalRanges
from voxpipe.storage.ranges import ReadRange
from voxpipe.volumes.formats import zarr_backend

KEYS = ("image", "label")
SAMPLES_PER_VOLUME = 8
SEED = 0
MB = 10**6
PROTOCOL = "counted"
FORMATS = ("nii", "nii by URL", "nii.gz", "zarr64", "zarr32", "shard128", "b2nd", "h5")
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
    "decoded / cover",
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


class CountedRanges(LocalRanges):
    """Files below a folder; every range is counted."""

    def get_ranges(self, ranges: Sequence[ReadRange], most: int = 0) -> list[bytes | None]:
        """Return the bytes of each range."""
        found = super().get_ranges(ranges, most)
        for answer in found:
            if answer is not None:
                TRAFFIC.requests += 1
                TRAFFIC.bytes += len(answer)
        return found


QUICK = {"shape": (70, 60, 50), "size": 16, "count": 1}
"""What ``--quick`` sets, whatever else is given."""


def main() -> None:
    chosen = _arguments()
    fsspec.register_implementation(PROTOCOL, CountedFiles)
    zarr_backend.LocalRanges = CountedRanges  # type: ignore[misc]  # what zarr on a disk is read by
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
    from voxpipe.core import IO_COUNTERS

    cases = _cases(form, folder, chosen.count)
    described = (
        vp.from_cases(cases)
        .open_volume()
        .lazy_patch(chosen.size, samples_per_volume=SAMPLES_PER_VOLUME)
        .augment(rotate=(-15, 15), zoom=(0.9, 1.1), flip=0.5)
    )
    exact = regions = cover = 0
    lazy = []
    # Headers are read here, and .nii.gz is decoded: what follows is patches alone.
    with vp.DataLoader2(described, seed=SEED) as loader:
        for sample in loader:
            for key in KEYS:
                size = np.dtype(sample[key].volume.dtype).itemsize
                seen = exact_voxels(sample[key])
                exact += size * int(np.count_nonzero(seen))
                cover += size * chunk_voxels(seen, sample[key].volume.chunks)
                regions += size * int(np.prod(sample[key].source_region.shape))
                lazy.append(sample[key])
    patches = len(lazy) // len(KEYS)
    for case in cases:
        for key in KEYS:
            vp.Volume(case[key]).read(vp.Region((0, 0, 0), (1, 1, 1)))
    TRAFFIC.requests = TRAFFIC.bytes = 0
    before = IO_COUNTERS.snapshot()
    # One by one and without a loader: nothing decoded is kept from patch to patch.
    for patch in lazy:
        patch.realize()
    done = IO_COUNTERS - before
    chunked = lazy[0].volume.chunks is not None
    decoded = done.bytes_decoded if chunked else done.bytes_read
    counted = form not in ("nii", "nii.gz", "b2nd", "h5")
    how = "by h5py" if form == "h5" else "mapped"
    return [
        form,
        str(patches),
        *_megabytes(patches, exact, regions),
        f"{regions / exact:.2f}",
        *(_megabytes(patches, TRAFFIC.bytes) if counted else [how]),
        f"{TRAFFIC.requests / patches:.1f}" if counted else how,
        *_megabytes(patches, decoded),
        f"{decoded / exact:.2f}",
        f"{decoded / cover:.2f}" if chunked else "no chunks",
    ]


def _cases(form: str, folder: Path, count: int) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = list(phantom.cases(folder, count, form.partition(" ")[0]))
    for case in cases:
        for key in KEYS:
            if form == "nii by URL":
                case[key] = f"{PROTOCOL}://{case[key]}"
    return cases


def _megabytes(patches: int, *amounts: int) -> list[str]:
    return [f"{amount / patches / MB:.3f}" for amount in amounts]


def exact_voxels(patch: Any) -> NDArray[np.bool_]:
    """Return which voxels of the volume have a weight above 0 in some voxel of a patch.

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
    return seen


def chunk_voxels(seen: NDArray[np.bool_], chunk: tuple[int, int, int] | None) -> int:
    """Return the voxels of all chunks that hold one that is seen; of whole chunks, as decoded."""
    if chunk is None:
        return 0
    counts = seen
    for axis, length in enumerate(chunk):
        counts = np.logical_or.reduceat(counts, np.arange(0, seen.shape[axis], length), axis)
    return int(np.count_nonzero(counts) * np.prod(chunk))


def _mark(seen: NDArray[np.bool_], taps: NDArray[np.int64], padding: str) -> None:
    last = np.array(seen.shape)[:, None] - 1
    if padding == "border":
        taps = np.clip(taps, 0, last)
    else:
        taps = taps[:, ((taps >= 0) & (taps <= last)).all(axis=0)]
    seen[tuple(taps)] = True


if __name__ == "__main__":
    main()
