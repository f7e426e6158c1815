"""Count the functions of the package that a remote range and a batch enter, in all threads.

``python tools/count_calls.py`` prints the table; ``--list`` names the functions. Each is counted by
``sys.setprofile`` in steady state, after `WARM` others of its kind. A comprehension belongs to the
function around it. Of a read that needs chunks, and of a patch of two volumes, it counts calls,
those of other Python code included: as many for a hundred chunks as for a few.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy as np

# So many others come first: connections, caches and tables are there by then.
WARM = 20
RANGE_BYTES = 1000
SHAPE, CHUNK, PATCH = (64, 64, 64), (8, 8, 8), (16, 16, 16)
FEW, MANY = 8, 216
"""Chunks that a read needs: cubes of two and of six."""
PACKAGE = "voxpipe"
SERVER = Path(__file__).resolve().parent.parent / "tests" / "s3_server.py"
# Part of a function, and in Python 3.12 inside it.
INNER = ("<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>")


class Calls:
    """What is entered of the package while `counting`, in every thread that begins after this."""

    def __init__(self) -> None:
        self._entered: set[CodeType] = set()
        self._modules: dict[CodeType, str] = {}
        self._counting = False
        self.number = 0
        """How many calls were made, of whichever function."""
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        if not self._counting or event != "call":
            return
        self.number += 1
        if frame.f_code not in self._entered:
            self._entered.add(frame.f_code)
            self._modules[frame.f_code] = frame.f_globals.get("__name__", "")

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Count what is entered inside the ``with`` block."""
        self._entered.clear()
        self.number = 0
        self._counting = True
        try:
            yield
        finally:
            self._counting = False

    def functions(self) -> dict[str, set[str]]:
        """Return the functions of the package that were entered, by module."""
        found: dict[str, set[str]] = {}
        for code in set(self._entered):
            module, *parts = self._modules[code], *code.co_qualname.split(".")
            while parts[-1] in INNER:
                parts = parts[:-2] if parts[-2:-1] == ["<locals>"] else parts[:-1]
            if module.partition(".")[0] == PACKAGE and parts != ["<module>"]:
                found.setdefault(module, set()).add(".".join(parts))
        return found


@contextmanager
def bucket_server(root: Path) -> Iterator[None]:
    """Serve the folders of ``root`` as buckets from another process: its calls do not count."""
    command = [sys.executable, str(SERVER), str(root)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as server:
        assert server.stdout is not None
        assert server.stdin is not None
        server.stdout.readline()
        before = dict(os.environ)
        os.environ.update(json.loads(server.stdout.readline()))
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)
            server.stdin.close()


def count_range(calls: Calls, client: str) -> dict[str, set[str]]:
    """Return what one range of an object in a bucket enters, read by obstore or fsspec."""
    with tempfile.TemporaryDirectory() as folder:
        bucket = Path(folder) / "scans"
        bucket.mkdir()
        (bucket / "a.raw").write_bytes(bytes(RANGE_BYTES * (WARM + 1)))
        with bucket_server(Path(folder)):
            os.environ["VOXPIPE_REMOTE"] = client
            from voxpipe.storage.ranges import ReadRange
            from voxpipe.storage.remote import open_remote

            store = open_remote("s3://scans", {})
            for n in range(WARM + 1):
                wanted = ReadRange("a.raw", n * RANGE_BYTES, (n + 1) * RANGE_BYTES)
                if n < WARM:
                    store.get_ranges([wanted])
                    continue
                with calls.counting():
                    (found,) = store.get_ranges([wanted])
                assert len(found or b"") == RANGE_BYTES
    return calls.functions()


def count_batch(calls: Calls) -> dict[str, set[str]]:
    """Return what one batch of one rotated patch enters: a sharded zarr on a local disk."""
    import zarr

    import voxpipe as vp

    with tempfile.TemporaryDirectory() as folder:
        voxels = np.random.default_rng(0).integers(-999, 999, SHAPE).astype(np.int16)
        zarr.create_array(Path(folder) / "ct.zarr", data=voxels, chunks=CHUNK, shards=SHAPE)
        patches = (
            vp.from_cases([{"image": f"{folder}/ct.zarr"}])
            .open_volume()
            .lazy_patch(PATCH, samples_per_volume=2 * WARM)
            .augment(rotate=(-15, 15))
        )
        with vp.DataLoader2(patches.batch_patches(1), seed=1) as loader:
            batches = iter(loader)
            for _ in range(WARM):
                next(batches)
            with calls.counting():
                next(batches)
    return calls.functions()


def count_reads(calls: Calls, form: str) -> tuple[int, int]:
    """Return the calls of a read of one volume that needs `FEW` chunks, and `MANY`."""
    import zarr

    import voxpipe as vp

    voxels = np.random.default_rng(0).integers(-999, 999, SHAPE).astype(np.int16)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/ct.{'b2nd' if form == 'b2nd' else 'zarr'}"
        if form == "b2nd":
            import blosc2

            blosc2.asarray(voxels, urlpath=path, mode="w", chunks=SHAPE, blocks=CHUNK)
        else:
            codec = zarr.codecs.BloscCodec(cname="lz4")
            zarr.create_array(path, data=voxels, chunks=CHUNK, shards=SHAPE, compressors=codec)
        volume = vp.Volume(path)
        counts = []
        for number in (FEW, MANY):
            stop = [round(number ** (1 / 3)) * n - 1 for n in CHUNK]
            for _ in range(WARM):  # as in an epoch; by then files are known to be in memory
                volume.prefetch(vp.Region((0, 0, 0), stop))
            volume.read(vp.Region((0, 0, 0), stop))
            region = vp.Region((0, 0, 0), stop)
            with calls.counting():
                volume.read(region)
                counts.append(calls.number)
    few, many = counts
    return few, many


def count_patches(calls: Calls) -> int:
    """Return the calls of a patch of image and label, converted to zarr: a median of batches."""
    import voxpipe as vp

    voxels = np.random.default_rng(0).integers(0, 99, SHAPE).astype(np.uint8)
    with tempfile.TemporaryDirectory() as folder:
        case = {key: f"{folder}/{key}.zarr" for key in ("image", "label")}
        for path in case.values():
            vp.convert(vp.Volume(voxels), path, patch=PATCH[0])
        patches = (
            vp.from_cases([case])
            .open_volume()
            .lazy_patch(PATCH, samples_per_volume=4 * 2 * WARM)
            .augment(rotate=(-15, 15), zoom=(0.9, 1.1), flip=0.5)
        )
        counts = []
        with vp.DataLoader2(patches.batch_patches(4), seed=1) as loader:
            batches = iter(loader)
            for number in range(2 * WARM - 2):
                with calls.counting():
                    next(batches)
                    counts.append(calls.number / 4)
                if number < WARM:
                    counts.clear()
    return round(statistics.median(counts))


def main() -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="name the functions")
    parser.add_argument(
        "--only", default="", help="count what begins like this: range, batch, patch, read"
    )
    chosen = parser.parse_args()
    calls = Calls()
    asked: dict[str, Callable[[], dict[str, set[str]]]] = {
        "range by obstore": lambda: count_range(calls, "obstore"),
        "range by fsspec": lambda: count_range(calls, "fsspec"),
        "batch of one rotated patch": lambda: count_batch(calls),
    }
    print(f"{'':30}{'functions':>10}{'modules':>10}")
    for name, count in asked.items():
        if not name.startswith(chosen.only):
            continue
        found = count()
        print(f"{name:30}{sum(map(len, found.values())):10}{len(found):10}")
        if chosen.list:
            for module in sorted(found):
                print(f"  {module.removeprefix(PACKAGE + '.')}: {', '.join(sorted(found[module]))}")
    if "patch".startswith(chosen.only):
        print(f"{'patch of image and label, calls':30}{count_patches(calls):10}")
    if not "read".startswith(chosen.only):
        return
    print(f"{'':30}{f'{FEW} chunks':>10}{f'{MANY} chunks':>12}")
    for form in ("shards", "b2nd"):
        few, many = count_reads(calls, form)
        print(f"{f'read of {form}, calls':30}{few:10}{many:12}")


if __name__ == "__main__":
    main()
