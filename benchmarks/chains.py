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
    scales: tuple[float, ...] = ()
    """Of the labels, for deep supervision."""


def _readme(pipe: Any, *, normalize: bool) -> Any:
    """Turn, zoom and mirror every patch; values stay as they are stored."""
    return pipe.augment(rotate=(-15, 15), zoom=(0.9, 1.1), flip=0.5)


def nnunet(pipe: Any, *, normalize: bool) -> Any:
    """Do what nnU-Net 2.8 does by default, ``nnUNetTrainer.get_training_transforms``.

    Of isotropic patches. Different are the labels (nearest) and the lattice of low resolution.
    Mirrors come before the values are changed: so nothing is interpolated twice.
    """
    from voxpipe.extensions.recipes import nnunet_augmentation

    return nnunet_augmentation(pipe.normalize() if normalize else pipe)


WORKS = {
    "readme": Work(96, 4, phantom.FORMATS, _readme),
    # Scales of its network for 128^3: of six stages the last one has no output.
    "nnunet": Work(128, 2, ("nii", "converted", "b2nd"), nnunet, (1, 1 / 2, 1 / 4, 1 / 8, 1 / 16)),
}
