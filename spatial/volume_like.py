"""What the lazy side asks of a volume: less than a ``Volume`` is, so that others fit too."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ...core import Grid, OrientedBox, Region
from ...core.errors import UnknownFormat


class VoxelsLike(Protocol):
    """What reading a region gives: stored voxels and how to turn them into values."""

    @property
    def array(self) -> NDArray[Any]:
        """(C, i, j, k), stored type, any strides and byte order."""

    @property
    def slope(self) -> float:
        """``value = array * slope + intercept``."""

    @property
    def intercept(self) -> float:
        """See ``slope``."""


class VolumeLike(Protocol):
    """What a patch asks of its volume."""

    @property
    def name(self) -> str:
        """Path or URL, without credentials."""

    @property
    def kind(self) -> str:
        """``"intensity"`` or ``"label"``."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(C, I, J, K)."""

    @property
    def grid(self) -> Grid:
        """Spatial shape and affine."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the values that reads stand for, native byte order."""

    def read(self, region: Region, box: OrientedBox | None = None) -> VoxelsLike:
        """Return the voxels of a region inside the volume; they are only needed in the box."""


def refuse_complex(volume: VolumeLike) -> None:
    """Raise for complex numbers, before a voxel is read; ``Volume.numpy()`` returns them."""
    if np.dtype(volume.dtype).kind == "c":
        raise UnknownFormat(
            f"{volume.name} holds complex numbers, of which no patch can be resampled.",
            do="Store magnitude and phase, or the two parts, as channels of real numbers.",
        )
