"""A raw dataset of nnU-Net's, of five tiny cases and two channels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import nibabel
import numpy as np

SHAPE = (20, 18, 12)
"""Of the stored volumes, (I, J, K)."""
SPACING = (1.0, 1.0, 2.0)
CASES = [f"case_{n}" for n in range(5)]
LABELS = {"background": 0, "organ": 1, "tumour": 2}


def save(array: Any, path: Path) -> None:
    """Write a volume as NIfTI."""
    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(array, np.diag([*SPACING, 1.0])), path)


def volumes_of(number: int) -> dict[str, Any]:
    """Return two images and a label: an organ with a tumour in it, nothing around the head."""
    random = np.random.default_rng(number)
    label = np.zeros(SHAPE, np.uint8)
    label[6:14, 6:14, 4:9], label[8:10, 8:10, 5:7] = 1, 2
    ct = (random.normal(0, 150, SHAPE) + 100 * label).astype(np.int16)
    mr = random.integers(1, 900, SHAPE).astype(np.int16)
    mr[:2], mr[-2:], mr[:, :2] = 0, 0, 0
    return {"0000": ct, "0001": mr, "label": label}


def write_raw(root: Path) -> Path:
    """Write all cases, and what nnU-Net is told of them."""
    for number, name in enumerate(CASES):
        volumes = volumes_of(number)
        for channel in ("0000", "0001"):
            save(volumes[channel], root / "imagesTr" / f"{name}_{channel}.nii.gz")
        save(volumes["label"], root / "labelsTr" / f"{name}.nii.gz")
    document = {
        "channel_names": {"0": "CT", "1": "T1"},
        "labels": LABELS,
        "numTraining": len(CASES),
        "file_ending": ".nii.gz",
    }
    (root / "dataset.json").write_text(json.dumps(document))
    return root
