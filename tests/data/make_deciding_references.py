"""Make deciding-monai.npz and deciding-torchio.npz: crops that look, and a distortion.

Made with MONAI 1.6.1 and TorchIO 1.2.1, each in an environment of its own::

    python make_deciding_references.py monai
    python make_deciding_references.py torchio
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
LABEL = np.zeros((1, 14, 11, 9), np.uint8)
LABEL[0, 3:8, 6:10, 1:4] = 1
LABEL[0, 9, 2, 6] = 2
# Every voxel tells its place, none is 0.
VOLUME = (np.arange(LABEL.size).reshape(LABEL.shape) + 1).astype(np.int16)
FACTORS = ((0.6, 0.7, 1.1), (1.5, 0.7), (0.6, 1.2))
RAMP_SHAPE = (48, 40, 32)


def monai_arrays() -> dict[str, np.ndarray]:
    import torch
    from monai.transforms import CropForegroundd, GridDistortion

    def cropped(**options: object) -> np.ndarray:
        crop = CropForegroundd(["v"], source_key="l", start_coord_key=None, **options)
        found = crop({"v": torch.tensor(VOLUME), "l": torch.tensor(LABEL)})
        return np.asarray(found["v"])

    ramps = np.stack(np.indices(RAMP_SHAPE)).astype(np.float32)
    steps = [(*axis, 1.0) for axis in FACTORS]  # one more, for what is left of an axis: nothing
    bend = GridDistortion([len(axis) for axis in FACTORS], steps, padding_mode="border")
    bent = bend(torch.tensor(ramps))
    two = {"select_fn": lambda x: x == 2}
    return {
        "crop_foreground": cropped(allow_smaller=True),
        "crop_foreground_margin": cropped(margin=(2, 3, 1), allow_smaller=False),
        "crop_foreground_inside": cropped(margin=4, allow_smaller=True),
        "crop_foreground_divisible": cropped(k_divisible=4, allow_smaller=False),
        "crop_foreground_label": cropped(margin=1, allow_smaller=True, **two),
        # Along each axis, the same on every line.
        "grid_distortion_0": np.asarray(bent[0, :, 0, 0]),
        "grid_distortion_1": np.asarray(bent[1, 0, :, 0]),
        "grid_distortion_2": np.asarray(bent[2, 0, 0, :]),
    }


def torchio_arrays() -> dict[str, np.ndarray]:
    import torch
    import torchio as tio

    found = {}
    for name, size in {"even": (4, 6, 8), "odd": (5, 3, 11), "larger": (16, 4, 4)}.items():
        subject = tio.Subject(
            v=tio.ScalarImage(tensor=torch.tensor(VOLUME.astype(np.int32))),
            l=tio.LabelMap(tensor=torch.tensor(LABEL)),
        )
        made = tio.CropOrPad(size, mask_name="l", labels=[1])(subject)
        found[f"crop_or_pad_mask_{name}"] = np.asarray(made.v.data).astype(np.int16)
    return found


def main() -> None:
    warnings.simplefilter("ignore")
    peer = sys.argv[1]
    arrays = monai_arrays() if peer == "monai" else torchio_arrays()
    np.savez_compressed(HERE / f"deciding-{peer}.npz", volume=VOLUME, label=LABEL, **arrays)


if __name__ == "__main__":
    main()
