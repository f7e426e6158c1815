"""MONAI: the chains of accuracy.py, lazily and eagerly. Prints one line of JSON.

Its turns and zooms act along the array's axes, so they are given as ``Affine(affine=)``, the
pull-back in voxels. ``Resample`` takes the elastic field as a dense grid, as its own elastic
transforms make one; that is no lazy transform, so a lazy chain is resampled before it, too. Modes
are given as overrides, as a lazy chain drops those of its transforms.
"""

from __future__ import annotations

import warnings
from typing import Any

import analytic as a
import monai
import monai.transforms as mt
import numpy as np
import torch
from monai.data import MetaTensor

UNDONE = {("MONAI lazy", "anisotropy")}
"""What comes to nothing: two resizes that undo each other are one matrix, the identity."""


def transforms(chain: a.Chain, mode: str) -> list[Any]:
    """Return what does the chain; ``mode`` is how it is sampled."""
    zooms = "trilinear" if mode == "bilinear" else mode
    maps = [
        mt.Affine(
            affine=a.linear_part(a.pull_back(f)), mode=mode, padding_mode="border", image_only=True
        )
        for f in chain.forward
    ]
    spaced = mt.Spacing(a.SPACED, scale_extent=True, mode=mode)
    low, high = a.CROP
    return {
        "rotate": maps,
        "rotate, zoom": maps,
        "affine, elastic": [*maps, Elastic(mode)],
        "spacing": [spaced],
        "spacing, orientation, crop": [
            spaced,
            mt.Orientation("PIR"),
            mt.SpatialCrop(roi_start=low, roi_end=high),
        ],
        "flip, rotate90, pad": [mt.Flip(0), mt.Rotate90(1, (0, 1)), mt.BorderPad(a.PADDED)],
        "anisotropy": [
            mt.Resize((*a.SHAPE[:2], a.SHAPE[2] // a.FACTOR), mode="nearest"),
            mt.Resize(a.SHAPE, mode=zooms),
        ],
        "low_resolution": [
            mt.RandSimulateLowResolution(
                prob=1, zoom_range=(1 / a.FACTOR, 1 / a.FACTOR), upsample_mode="trilinear"
            )
        ],
        "rotate three times": maps,
        "resize to a quarter, antialias": [
            mt.Resize(a.COARSE_SHAPE, anti_aliasing=mode == "bilinear", mode=zooms)
        ],
    }[chain.name]


class Elastic:
    """The spline as a dense grid about the middle of the array, which ``Resample`` takes."""

    def __init__(self, mode: str) -> None:
        self.resample = mt.Resample(mode=mode, padding_mode="border")

    def __call__(self, image: Any) -> Any:
        index = a.indices(a.SHAPE)
        place = index + a.displacement(index) / a.SPACING - (np.array(a.SHAPE) - 1) / 2
        grid = torch.as_tensor(np.moveaxis(place, -1, 0))
        return self.resample(image, grid=grid)


def done(chain: a.Chain, values: Any, mode: str, lazy: bool) -> Any:
    """Return what the chain makes of an array."""
    image = MetaTensor(torch.as_tensor(values)[None].float(), affine=torch.as_tensor(a.AFFINE))
    overrides = {"mode": mode, "padding_mode": "border"} if lazy else None
    return mt.Compose(transforms(chain, mode), lazy=lazy, overrides=overrides)(image).numpy()[0]


def measured(chain: a.Chain, lazy: bool) -> dict[str, float]:
    """Return the errors of one chain."""
    image = done(chain, a.volume(chain.stored), "bilinear", lazy)
    label = done(chain, a.volume(a.labels), "nearest", lazy) if chain.has_labels else None
    return a.judged(chain, image, label)


def main() -> None:
    warnings.simplefilter("ignore")
    found = {
        way: {c.name: measured(c, lazy) for c in a.CHAINS if (way, c.name) not in UNDONE}
        for way, lazy in (("MONAI lazy", True), ("MONAI eager", False))
    }
    a.answer(found, monai=monai.__version__)


if __name__ == "__main__":
    main()
