"""What the throughput benchmark does to a patch: the README's chain, and nnU-Net's default.

Nothing of voxpipe is imported before a chain is made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import phantom


@dataclass(frozen=True)
class Work:
    """Patches of one size, and what is done to them."""

    size: int
    """Edge of a patch, in voxels."""
    batch: int
    """Patches in a batch."""
    formats: tuple[str, ...]
    """What is measured unless the user says otherwise."""
    augment: Callable[..., Any]
    """Takes a chain of patches, and whether their values are still those of a scanner."""


def _readme(pipe: Any, *, normalize: bool) -> Any:
    """Turn, zoom and mirror every patch; values stay as they are stored."""
    return pipe.augment(rotate=(-15, 15), zoom=(0.9, 1.1), flip=0.5)


def nnunet(pipe: Any, *, normalize: bool) -> Any:
    """Do what nnU-Net 2.8 does by default, ``nnUNetTrainer.get_training_transforms``.

    Of isotropic patches, without deep supervision. Images of one channel: where nnU-Net acts on an
    image with a probability, and then on each of its channels with another, here it is the product.
    Different are the labels (nearest), the lattice of low resolution, and a blur of one deviation
    for all axes. Mirrors come before the values are changed: so nothing is interpolated twice.
    """
    from voxpipe.intensity import Brightness, Contrast, Gamma

    def halves(op: Any, low: float, high: float, **more: Any) -> list[Any]:
        """Return the op below 1 and above: the library draws first which, then how much."""
        return [op((low, 1.0), **more), op((1.0, high), **more)]

    pipe = (
        pipe.rotate((-30, 30), space="voxel", p=0.2)
        .zoom((1 / 1.4, 1 / 0.7), space="voxel", p=0.2)
        .flip((0, 1, 2), p=0.5)
    )
    if normalize:
        pipe = pipe.normalize()
    spread = {"keep_range": True, "over": "patch"}
    bend = {"keep_statistics": True, "over": "patch"}
    return (
        pipe.noise((0, 0.1), p=0.1)
        .blur((0.5, 1.0), unit="voxel", p=0.2 * 0.5)
        .one_of(halves(Brightness, 0.75, 1.25), p=0.15)
        .one_of(halves(Contrast, 0.75, 1.25, **spread), p=0.15)
        .low_resolution((1, 2), p=0.25 * 0.5)
        .one_of(halves(Gamma, 0.7, 1.5, **bend, invert=True), p=0.1)
        .one_of(halves(Gamma, 0.7, 1.5, **bend), p=0.3)
    )


WORKS = {
    "readme": Work(96, 4, phantom.FORMATS, _readme),
    "nnunet": Work(128, 2, ("nii", "converted", "b2nd"), nnunet),
}
