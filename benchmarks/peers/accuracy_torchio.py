"""TorchIO: the chains of accuracy.py, transform by transform. Prints one line of JSON.

Its affines move content and leave the grid as it is, as the chains are written. A quarter turn is
an affine; anisotropy is ``RandomAnisotropy`` with one factor; low resolution is a resampling to
coarse voxels and back, as that does it. ITK turns x and y of the displacements round, and lays the
control points out in its own order of the world.
"""

from __future__ import annotations

import warnings
from typing import Any

import analytic as a
import numpy as np
import SimpleITK
import torch
import torchio as tio


def transforms(chain: a.Chain, linear: str) -> list[Any]:
    """Return what does the chain; ``linear`` is how the image is sampled."""
    how = {"image_interpolation": linear, "label_interpolation": "nearest"}
    fine, coarse = tuple(a.SPACING), tuple(s * a.FACTOR for s in a.SPACING)
    spaced = tio.Resample(a.SPACED, **how)
    low, high = a.CROP
    cut = [(low[n], (80, 60, 80)[n] - high[n]) for n in range(3)]
    return {
        "rotate": [affine(degrees=(20, 0, 0), **how)],
        "rotate, zoom": [affine(degrees=(0, 0, 20), **how), affine(scales=1.2, **how)],
        "affine, elastic": [General(**how), elastic(**how)],
        "spacing": [spaced],
        "spacing, orientation, crop": [
            spaced,
            tio.ToOrientation("PIR"),
            tio.Crop(tuple(n for pair in cut for n in pair)),
        ],
        "flip, rotate90, pad": [
            tio.Flip(0),
            affine(degrees=(0, 0, 90), **how),
            tio.Pad(a.PADDED, padding_mode="edge"),
        ],
        "anisotropy": [
            tio.RandomAnisotropy(axes=(2,), downsampling=(a.FACTOR, a.FACTOR), scalars_only=True)
        ],
        "low_resolution": [
            tio.Resample(coarse, image_interpolation="nearest"),
            tio.Resample((a.SHAPE, a.AFFINE), **how),
        ],
        "rotate three times": [
            affine(degrees=(15, 0, 0), **how),
            affine(degrees=(0, 10, 0), **how),
            affine(degrees=(0, 0, 20), **how),
        ],
        "resize to a quarter, antialias": [
            tio.Resample(tuple(4 * s for s in fine), antialias=True, **how)
        ],
    }[chain.name]


def affine(scales: Any = 1, degrees: Any = 0, **how: Any) -> Any:
    """Return a turn or a zoom about the middle."""
    return tio.Affine(scales, degrees, 0, **how)


class General(tio.SpatialTransform):  # type: ignore[misc]
    """A matrix of any kind, which its ``Affine`` has no words for: ITK's resampler, as that has."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.image_interpolation = how["image_interpolation"]

    def apply_transform(self, subject: Any) -> Any:
        """Resample every image."""
        turned = np.diag([-1.0, -1.0, 1.0, 1.0])
        matrix = turned @ np.linalg.inv(a.GENERAL) @ turned
        transform = SimpleITK.AffineTransform(3)
        transform.SetMatrix(matrix[:3, :3].ravel().tolist())
        transform.SetTranslation(matrix[:3, 3].tolist())
        for image in subject.get_images(intensity_only=False):
            is_label = isinstance(image, tio.LabelMap)
            how = SimpleITK.sitkNearestNeighbor if is_label else SimpleITK.sitkLinear
            made = SimpleITK.Resample(image.as_sitk(), transform, how)
            image.set_data(torch.as_tensor(SimpleITK.GetArrayFromImage(made).T.copy())[None])
        return subject


def elastic(**how: Any) -> Any:
    """Return the spline, in ITK's world."""
    control = np.moveaxis(a.CONTROL[:, ::-1, ::-1], 0, -1) * (-1, -1, 1)
    return tio.ElasticDeformation(control, (4.0, 4.0, 4.0), **how)


def measured(chain: a.Chain) -> dict[str, float]:
    """Return the errors of one chain."""
    image = torch.as_tensor(a.volume(chain.stored))[None]
    label = torch.as_tensor(a.volume(a.labels))[None]
    subject = tio.Subject(
        image=tio.ScalarImage(tensor=image, affine=a.AFFINE),
        label=tio.LabelMap(tensor=label, affine=a.AFFINE),
    )
    for transform in transforms(chain, "linear"):
        subject = transform(subject)
    return a.judged(chain, subject.image.numpy()[0], subject.label.numpy()[0])


def main() -> None:
    warnings.simplefilter("ignore")
    found = {chain.name: measured(chain) for chain in a.CHAINS}
    a.answer({"TorchIO": found}, torchio=tio.__version__)


if __name__ == "__main__":
    main()
