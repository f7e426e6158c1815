"""How far from the truth ten chains end, beside MONAI and TorchIO: errors and Dice.

    python benchmarks/accuracy.py
    python benchmarks/accuracy.py --peers
    python benchmarks/accuracy.py --peers monai_lazy --venvs build/peers

The volume is a function that is known everywhere (analytic.py), so the truth is that function at
the very place in the world that each voxel of the output shows. Fused is a chain as it is
written; eager is the same with a ``flush`` after each pipe, every one resampled by itself. Peers
run in the environments of throughput.py.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import analytic as a
import numpy as np
import processes
from peers import venvs

PROGRAMS = {"monai_lazy": "accuracy_monai.py", "torchio_queue": "accuracy_torchio.py"}
"""What measures a peer, by the name of its environment."""
OWN = ("voxpipe fused", "voxpipe eager")
CUBIC = "voxpipe fused, cubic"
"""Viewable for what it is worth; all others are linear, and the best of these is in bold."""
Results = Mapping[str, Mapping[str, Mapping[str, float]]]


@dataclass(frozen=True)
class Given:
    """The spline of the chain: control points that are given and not drawn."""

    name: ClassVar[str] = "given"
    lattice: ClassVar[bool] = False

    def draw(self, generator: Any, plan: Any) -> Any:
        """Return nothing: the points are known."""
        return {}

    def then(self, plan: Any, drawn: Any) -> Any:
        """Return the deformed plan."""
        return plan.displace(a.CONTROL_VOXELS, a.CONTROL_MATRIX)

    def describe(self) -> str:
        """Return the op in words."""
        return "given control points"


def pipes(chain: a.Chain, mode: str = "linear", *, stepwise: bool = False) -> Sequence[Any]:
    """Return the pipes of a chain as functions of the one before.

    Later ops act in the world of the grid as it is there, so a chain of maps is written with
    the first done last (docs/ops.md). ``stepwise`` writes it in the array's axes, the first first:
    the whole is the same, and what lies between two steps is then what peers have there.
    """
    how = {} if mode == "linear" else {"mode": mode}
    low, high = a.CROP
    if stepwise and len(chain.forward) > 1:
        return [_in_voxels(forward, how) for forward in chain.forward]
    general = a.linear_part(a.GENERAL)  # about the middle, as all matrices are
    return {
        "rotate": [lambda p: p.rotate((20, 0, 0), **how)],
        "rotate, zoom": [lambda p: p.zoom(1.2, **how), lambda p: p.rotate((0, 0, 20), **how)],
        "affine, elastic": [lambda p: p.affine(general, **how), _given],
        "spacing": [lambda p: p.spacing(a.SPACED, **how)],
        "spacing, orientation, crop": [
            lambda p: p.spacing(a.SPACED, **how),
            lambda p: p.orientation("PIR"),
            lambda p: p.crop(low, end=high),
        ],
        "flip, rotate90, pad": [
            lambda p: p.flip(0),
            lambda p: p.rotate90(1, (0, 1)),
            lambda p: p.pad(a.PADDED),
        ],
        "anisotropy": [lambda p: p.anisotropy(a.FACTOR, axes=2)],
        "low_resolution": [lambda p: p.low_resolution(a.FACTOR)],
        "rotate three times": [
            lambda p: p.rotate((0, 0, 20), **how),
            lambda p: p.rotate((0, 10, 0), **how),
            lambda p: p.rotate((15, 0, 0), **how),
        ],
        "resize to a quarter, antialias": [
            lambda p: p.resize(a.COARSE_SHAPE, antialias=True, **how)
        ],
    }[chain.name]


def _in_voxels(forward: a.Floats, how: dict[str, Any]) -> Any:
    matrix = np.linalg.inv(a.linear_part(a.pull_back(forward)))
    return lambda p: p.affine(matrix, space="voxel", **how)


def _given(pipe: Any) -> Any:
    from voxpipe.datapipes.spatial import SpatialPipe

    class GivenPipe(SpatialPipe, op=Given): ...

    return GivenPipe(pipe)


def own(chain: a.Chain, way: str) -> dict[str, float]:
    """Return the errors of voxpipe; ``way`` is one of ``OWN``, or ``CUBIC``."""
    import voxpipe as vp

    image = vp.Volume(a.volume(chain.stored), affine=a.AFFINE)
    label = vp.Volume(a.volume(a.labels), affine=a.AFFINE, kind="label")
    pipe = vp.from_cases([{"image": image, "label": label}]).open_volume()
    eager = way.endswith("eager")
    for add in pipes(chain, "cubic" if way == CUBIC else "linear", stepwise=eager):
        pipe = add(pipe)
        pipe = pipe.flush() if eager else pipe
    sample = next(iter(pipe))
    return a.judged(chain, np.asarray(sample["image"])[0], np.asarray(sample["label"])[0])


def measured(*ways: str) -> dict[str, dict[str, dict[str, float]]]:
    """Return columns of voxpipe's own."""
    return {way: {chain.name: own(chain, way) for chain in a.CHAINS} for way in ways}


def table(results: Results, what: str, scale: float, digits: int) -> str:
    """Return one number of all chains as a Markdown table, the best of each row in bold."""
    lines = ["| chain | " + " | ".join(results) + " |", "|---" * (len(results) + 1) + "|"]
    for chain in a.CHAINS:
        numbers = [rows.get(chain.name, {}).get(what) for rows in results.values()]
        said = [_said(number, scale, digits) for number in numbers]
        linear = [text for way, text in zip(results, said, strict=True) if text and way != CUBIC]
        best = _best(linear, highest=what == "dice")
        if best is not None:
            cells = [
                f"**{text}**" if text == best and way != CUBIC else text or "-"
                for way, text in zip(results, said, strict=True)
            ]
            lines.append(f"| {chain.name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _said(number: float | None, scale: float, digits: int) -> str:
    return "" if number is None else f"{number * scale:.{digits}f}"


def _best(said: Sequence[str], *, highest: bool) -> str | None:
    if not said:
        return None
    return (max if highest else min)(said, key=float)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--peers", nargs="*", choices=PROGRAMS, help="all if none named")
    parser.add_argument("--venvs", type=Path, default=venvs.VENVS)
    parser.add_argument("--quick", action="store_true", help="as it is: this takes seconds")
    chosen = parser.parse_args()
    import voxpipe as vp

    results: dict[str, Any] = measured(*OWN)
    versions = {"voxpipe": vp.__version__}
    here = Path(__file__).resolve().parent
    for name in PROGRAMS if chosen.peers == [] else chosen.peers or ():
        try:
            python = venvs.python_of(venvs.PEERS[name], chosen.venvs)
        except venvs.CannotInstall as problem:
            print(f"{name}: {problem}", file=sys.stderr)
            continue
        command = [str(python), str(here / "peers" / PROGRAMS[name])]
        found = processes.run(command, {"PYTHONPATH": str(here)}).answer()
        results |= found["results"]
        versions |= found["versions"]
    results |= measured(CUBIC)
    print("## Accuracy\n")
    print("Versions: " + ", ".join(f"{name} {version}" for name, version in versions.items()))
    for title, what, scale, digits in (
        ("RMSE, in 1/10,000 of the range", "rmse", 1e4, 2),
        ("Largest error, in 1/10,000 of the range", "max", 1e4, 1),
        ("Mean Dice of three labels", "dice", 1, 4),
    ):
        print(f"\n### {title}\n\n{table(results, what, scale, digits)}")


if __name__ == "__main__":
    main()
