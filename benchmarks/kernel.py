"""The resampling kernel against what people use instead, on one thread.

    python benchmarks/kernel.py
    python benchmarks/kernel.py --only elastic --rounds 15

A patch is resampled out of a mapped file by one call of ``resample``, by torch (``affine_grid`` and
``grid_sample`` of the box that holds the voxels needed, made float32 first), by ``scipy.ndimage``,
and where whole voxels are moved, next to ``memcpy`` of as many bytes. All of them take turns in one
process; figures are medians of the processor time of the thread, so that a neighbour who takes the
core does not count, and a ratio is the median of the ratios of single rounds.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before anything reads it: one thread for everybody

import kernel_peers
import machine
import numpy as np
import promises
from numpy.typing import NDArray

from voxpipe.core import Region
from voxpipe.core.affine3x4 import affine3x4
from voxpipe.spatial import Displacement, KernelStages, Policy, SourceVoxels, resample
from voxpipe.spatial.plans.pull_back import source_region
from voxpipe.spatial.resampling import native_resampler as native

MAP_MB = 256
"""Size of the mapped file: beyond any level 2 cache and what a TLB covers."""
SPACING = 16
"""Voxels between control points of a displacement, as nnU-Net's and TorchIO's fields of seven."""
STRENGTH = 4.0
"""Standard deviation of the control points, in voxels."""
PARTS = {"voxpipe": "kernel", "torch": "conversion"}
"""What is measured within a contestant."""
WARMING = 3
"""Calls before a hot one is timed: after two, the caches still hold what the others left."""
COLUMNS = (
    "stored",
    "order",
    "class",
    "place",
    "voxpipe ms",
    "kernel ms",
    "torch ms",
    "with region as float32",
    "scipy ms",
    "memcpy ms",
    "torch/voxpipe",
    "the same, converted",
    "voxpipe/memcpy",
    "bar",
)


@dataclass(frozen=True)
class Case:
    """One row of the table, measured at one hot place and at random ones."""

    stored: str
    """NumPy's name of the stored type."""
    kind: str
    """Class of plan: a key of ``MATRICES``, and how it is sampled."""
    mode: str = "linear"
    result: str = "f4"
    order: str = "C"
    """Order of the volume in memory: ``"F"`` is that of a mapped NIfTI."""
    faster: float = 0.0
    """How many times faster than torch, its conversion included, the project promises; or 0."""
    copying: float = 0.0
    """How many times the duration of ``memcpy`` is allowed at most; or 0."""

    @property
    def name(self) -> str:
        """The class as the table says it."""
        moved = self.kind in ("copy", "flip", "transpose")
        return self.kind if moved else f"{self.kind}, {self.mode}"

    @property
    def memory_moves(self) -> bool:
        """Whether bytes are moved and nothing is calculated."""
        return self.kind in ("copy", "flip", "transpose") and self.stored == self.result


def cases() -> list[Case]:
    """Return the rows, with what is promised of them."""
    moves = [
        *(Case(name, "copy", result=name, copying=most) for name, most in promises.COPY.items()),
        Case("i2", "copy", result="i2", order="F"),
        Case("i2", "copy"),
        *(Case(name, kind, result=name) for name in ("u1", "i2") for kind in ("flip", "transpose")),
    ]
    zooms = [Case(name, "zoom") for name in ("u1", "i2", "f4")]
    types = ("u1", "i1", "u2", "i2", "u4", "i4", "f2", "f4", "f8")
    bars = {stored: bar for (kind, stored), bar in promises.KERNEL.items() if kind == "affine"}
    affine = [Case(name, "affine", faster=bars.get(name, 0)) for name in types]
    return [
        *moves,
        *zooms,
        *affine,
        Case("i2", "affine", order="F", faster=promises.KERNEL["affine", "i2"]),
        *(
            Case("u1", "affine", "nearest", "u1", order, promises.KERNEL["affine, nearest", "u1"])
            for order in "CF"
        ),
        *(Case(name, "affine", "cubic") for name in ("u1", "i2", "f4")),
        *(
            Case(name, kind, faster=promises.KERNEL[kind, name])
            for kind in ("elastic", "elastic turned")
            for name in ("i2", "f4")
        ),
        Case("u1", "elastic turned", "nearest", "u1"),
        Case("i2", "elastic turned", order="F", faster=promises.KERNEL["elastic turned", "i2"]),
        Case("i2", "elastic turned", "cubic"),
    ]


def turned(degrees: float, zoom: float) -> NDArray[np.float64]:
    """Return a rotation about all three axes, one after the other, magnified."""
    matrix = np.eye(3) / zoom
    c, s = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    for a, b in ((0, 1), (1, 2), (0, 2)):
        one = np.eye(3)
        one[a, a] = one[b, b] = c
        one[a, b], one[b, a] = -s, s
        matrix = matrix @ one
    return matrix


MATRICES = {
    "copy": np.eye(3),
    "flip": np.diag([-1.0, 1.0, -1.0]),
    "transpose": np.eye(3)[[2, 0, 1]],
    "zoom": np.diag([0.93, 0.93, 1.07]),
    "affine": turned(15, 1.05),
    "elastic": turned(15, 1.05),
    "elastic turned": turned(15, 1.05),
}


@dataclass(frozen=True)
class Setting:
    """What does not change from round to round."""

    case: Case
    volume: NDArray[Any]
    size: int
    field: Displacement | None
    margin: int
    """Voxels between the middle of a patch and the faces of the volume: nothing is padded."""

    def matrix(self, middle: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the pull-back, 3x4, of a patch about ``middle``."""
        linear = MATRICES[self.case.kind]
        shift = middle - linear @ np.full(3, (self.size - 1) / 2)
        return np.column_stack([linear, np.rint(shift) if self.case.memory_moves else shift])


def setting(case: Case, volume: NDArray[Any], size: int) -> Setting:
    """Return the case with its field; a turned one has its control grid along the source."""
    field = None
    if case.kind.startswith("elastic"):
        points = math.ceil(size / SPACING) + 1
        control = np.random.default_rng(5).normal(0, STRENGTH, (3, points, points, points))
        towards = np.eye(4)
        towards[:3, :3] = (np.eye(3) if case.kind == "elastic" else turned(15, 1.0)) / SPACING
        middle = np.full(3, (size - 1) / 2)
        towards[:3, 3] = (points - 1) / 2 - towards[:3, :3] @ middle
        field = Displacement(control, towards)
    reach = 0.0 if field is None else max(abs(end) for ends in field.bounds for end in ends)
    half = np.abs(MATRICES[case.kind]).sum(axis=1).max() * size / 2
    return Setting(case, volume, size, field, math.ceil(half + reach) + 3)


def middles(one: Setting, seed: int, count: int) -> list[NDArray[np.float64]]:
    """Return places of patches, drawn from all over the volume."""
    rng = np.random.default_rng(seed)
    last = np.array(one.volume.shape[1:]) - 1 - one.margin
    return [rng.uniform(one.margin, last) for _ in range(count)]


def contestants(one: Setting) -> dict[str, Callable[[NDArray[np.float64]], Any]]:
    """Return what takes turns: functions of the middle of a patch."""
    case = one.case
    policy = Policy(case.mode, "border")
    out = np.zeros((1, *(one.size,) * 3), case.result)
    bounds = Region.of_shape(one.volume.shape[1:])
    source = SourceVoxels(one.volume, (0, 0, 0), bounds)
    moves = () if one.field is None else one.field.bounds
    asked = (out.shape[1:], bounds, case.mode, "border", False, moves)

    def region(middle: NDArray[np.float64]) -> tuple[NDArray[Any], NDArray[np.float64]]:
        matrix = one.matrix(middle)
        box = source_region(affine3x4(matrix), *asked)
        matrix[:, 3] -= box.start
        return one.volume[(0, *box.slices)], matrix

    def voxpipe(middle: NDArray[np.float64]) -> float:
        with kernel_peers.seconds_in_kernel() as seconds:
            resample(source, one.matrix(middle), policy, out, KernelStages(displacement=one.field))
        return sum(seconds)

    found: dict[str, Callable[[NDArray[np.float64]], Any]] = {"voxpipe": voxpipe}
    if case.mode != "cubic":  # grid_sample has no cubic for volumes
        found["torch"] = kernel_peers.torch_sampler(region, out.shape[1:], case.mode, one.field)
    if kernel_peers.scipy_is_there():
        found["scipy"] = kernel_peers.scipy_sampler(region, out, case.mode, one.field)
    if case.memory_moves:
        flat = one.volume.ravel(order="K")
        into = np.zeros(out.size, flat.dtype)
        room = flat.size - into.size

        def memcpy(middle: NDArray[np.float64]) -> None:
            start = int(middle[0] * 1e6) % room  # anywhere; the same each time for the hot place
            np.copyto(into, flat[start : start + into.size])

        found["memcpy"] = memcpy
    return found


def measure(one: Setting, rounds: int, hot: bool) -> dict[str, list[float]]:
    """Return milliseconds by contestant; ``PARTS`` are parts of the one before."""
    runs = contestants(one)
    # Every contestant gets places of its own, so that none finds them in the caches.
    places = {name: middles(one, seed, rounds) for seed, name in enumerate(runs)}
    same = middles(one, 99, 1)[0]
    times: dict[str, list[float]] = {name: [] for name in [*runs, *PARTS.values()]}
    for name, run in runs.items():
        run(same if hot else places[name][-1])  # what is done only once
    for turn in range(rounds):
        for name, run in runs.items():
            if name == "scipy" and turn >= max(1, rounds // 4):
                continue  # so slow that a few times say it
            for _ in range(WARMING if hot and name != "scipy" else 0):
                run(same)
            started = time.thread_time()
            part = run(same if hot else places[name][turn])
            times[name].append(1000 * (time.thread_time() - started))
            if name in PARTS:
                times[PARTS[name]].append(1000 * part)
    return times


@dataclass(frozen=True)
class Row:
    """One case at one kind of place."""

    case: Case
    place: str
    times: dict[str, list[float]]

    def ratio(self, above: Sequence[float], name: str = "voxpipe") -> float:
        """Return how many times longer than voxpipe something took, round by round."""
        below = self.times[name] or self.times["voxpipe"]  # without the kernel, it took nothing
        return statistics.median(a / max(b, 1e-9) for a, b in zip(above, below, strict=True))

    def cells(self, *, is_judged: bool) -> list[str]:
        """Return the texts of the table; without a verdict where sizes are not those promised."""
        torch, part = self.times.get("torch", []), self.times["conversion"]
        plain = [a - b for a, b in zip(torch, part, strict=True)]
        memcpy = self.times.get("memcpy", [])
        return [
            *(f"{self.case.stored} to {self.case.result}", self.case.order, self.case.name),
            *(self.place, _median(self.times["voxpipe"]), _median(self.times["kernel"])),
            *(_median(plain), _median(torch)),
            *(_median(self.times.get("scipy", [])), _median(memcpy)),
            f"{self.ratio(plain):.1f}" if plain else "",
            f"{self.ratio(torch):.1f}" if torch else "",
            f"{1 / self.ratio(memcpy):.2f}" if memcpy else "",
            self.verdict() if is_judged else "",
        ]

    def verdict(self) -> str:
        """Return the bar and whether it is met; empty where there is none."""
        if self.case.faster:
            passed = self.ratio(self.times["torch"]) >= self.case.faster
            return f">= {self.case.faster:g} {'PASS' if passed else 'FAIL'}"
        if self.case.copying:
            alone = 1 / self.ratio(self.times["memcpy"], "kernel")
            passed = 1 / self.ratio(self.times["memcpy"]) <= self.case.copying
            note = f"kernel alone {alone:.2f}: {'PASS' if alone <= self.case.copying else 'FAIL'}"
            return f"<= {self.case.copying:g} {note}, call: {'PASS' if passed else 'FAIL'}"
        return ""


def _median(times: Sequence[float]) -> str:
    return f"{statistics.median(times):.2f}" if times else ""


def rows(chosen: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """Measure case by case; cases of one stored type share their file."""
    wanted = [case for case in cases() if chosen.only in f"{case.stored} {case.order} {case.name}"]
    for stored, order in dict.fromkeys((case.stored, case.order) for case in wanted):
        path = folder / f"{stored}-{order}"
        volume = kernel_peers.mapped_volume(path, stored, order, chosen.map_mb * 10**6)
        for case in wanted:
            if (case.stored, case.order) == (stored, order):
                one = setting(case, volume, chosen.size)
                for place in ("hot", "random"):
                    yield Row(case, place, measure(one, chosen.rounds, place == "hot"))
        del volume
        path.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=96, help="edge of a patch, in voxels")
    parser.add_argument("--rounds", type=int, default=25, help="measurements of each figure")
    parser.add_argument("--map-mb", type=int, default=MAP_MB, help="size of the mapped volume")
    parser.add_argument("--only", default="", help="rows that contain this: 'i2 C', 'elastic'")
    parser.add_argument(
        "--quick", action="store_true", help="tiny, to see that it runs; judges nothing"
    )
    chosen = parser.parse_args()
    if chosen.quick:
        chosen.size, chosen.rounds, chosen.map_mb = 12, 2, 1
    print("## Kernel\n")
    print(machine.describe())
    print(f"- the kernel's path: {native.path() or 'none, it is not built'}")
    print(f"- patches of {chosen.size}^3, {chosen.rounds} rounds, one thread\n")
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS), flush=True)
    failed = []
    with tempfile.TemporaryDirectory(prefix="voxpipe-bench-") as name:
        for row in rows(chosen, Path(name)):
            cells = row.cells(is_judged=not chosen.quick)
            print("| " + " | ".join(cells) + " |", flush=True)
            if cells[-1].endswith("FAIL"):
                failed.append(", ".join(cells[:4]) + ": " + cells[-1])
    if chosen.quick:
        return
    print("\nEvery bar is met." if not failed else "\nNot met:\n- " + "\n- ".join(failed))


if __name__ == "__main__":
    sys.exit(main())
