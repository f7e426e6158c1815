"""A raw dataset of nnU-Net's, made of the ICBM 152 template as the demo makes its cases.

Ten heads, each cut elsewhere, of another contrast and with noise of its own; every other one is
scanned in thick slices. Runs where nilearn and voxpipe are installed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples" / "demo"))

from demo_data import CASE_SHAPE, CLASSES, Variant, read_template, scanned, write_volume

NAME = "Dataset152_ICBM"
COUNT = 10
GAMMAS = (0.85, 1.15)
THICK = 2  # millimetres, where the template has 1


def write(root: Path) -> Path:
    """Write the dataset below ``root`` and return its folder; one that is there is kept."""
    folder = root / NAME
    if (folder / "dataset.json").exists():
        return folder
    for part in ("imagesTr", "labelsTr"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    head, random = read_template(), np.random.default_rng(0)
    for number in range(COUNT):
        rest = np.subtract(head.t1.shape, CASE_SHAPE)
        start: Any = tuple(int(random.integers(n + 1)) for n in rest)
        gamma = float(random.uniform(*GAMMAS))
        variant = Variant(f"head-{number}", ".nii.gz", "RAS", start, gamma=gamma)
        box = tuple(slice(a, a + n) for a, n in zip(start, CASE_SHAPE, strict=True))
        image, label = scanned(head.t1[box], variant), head.label[box]
        affine = np.array(head.affine)
        affine[:3, 3] += affine[:3, :3] @ start
        if number % 2:
            pairs = image.reshape(*CASE_SHAPE[:2], -1, THICK)
            image, label = pairs.mean(3).astype(image.dtype), label[..., ::THICK]
            affine[:3, 2] *= THICK
        write_volume(folder / "imagesTr" / f"{variant.name}_0000.nii.gz", image, affine)
        write_volume(folder / "labelsTr" / f"{variant.name}.nii.gz", np.array(label), affine)
    document = {
        "channel_names": {"0": "T1"},
        "labels": {"background": 0, **{name: value for value, name in CLASSES.items()}},
        "numTraining": COUNT,
        "file_ending": ".nii.gz",
    }
    (folder / "dataset.json").write_text(json.dumps(document), encoding="utf-8")
    return folder


if __name__ == "__main__":
    write(Path(sys.argv[1]))
