"""What the lazy side asks of a volume: less than a ``Volume`` is, so that others fit too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..core import Grid, OrientedBox, Region
from ..core.errors import UnknownFormat


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
    """What a patch asks of its volume.

    It may have, too: ``looks_ahead`` with ``prefetch()``, ``chunks``, ``disk_dtype``.
    """

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


class StackedVolumes:
    """A volume of the channels of several whose voxels come from others that stand for these.

    Some are in memory already, perhaps; everything else is asked of the real one.
    """

    def __init__(self, whole: Any, parts: Sequence[Any]) -> None:
        self._whole = whole
        self.parts = tuple(parts)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_whole":  # not there yet, while it is unpickled
            raise AttributeError(name)
        return getattr(self._whole, name)


class MadeLike(VolumeLike, Protocol):
    """What a volume that is made of a patch answers besides."""

    @property
    def patch(self) -> Any:
        """The lazy patch that it is made of."""

    @property
    def stored(self) -> Any:
        """The volume that lies in a file, below any number of these."""

    @property
    def draws(self) -> Mapping[str, Any]:
        """What the ops so far drew."""

    @property
    def view(self) -> Region:
        """Where the patch lies in what there is."""

    def part_of(self, plan: Any, region: Region | None = None) -> Any:
        """Return a plan to the patch as one to a region of what there is."""


def made_like(volume: Any) -> MadeLike | None:
    """Return the volume if it is made of a patch; None if it lies in a file or in memory."""
    return volume if hasattr(volume, "patch") else None


def patch_before(volume: Any) -> Any:
    """Return the patch that the volume is made of, or whose realized voxels it holds; or None."""
    return getattr(volume, "patch", None) or getattr(volume, "realized_from", None)


def stored_of(volume: Any) -> Any:
    """Return the volume that lies in a file: this one, or what it is made of."""
    made = made_like(volume)
    return volume if made is None else made.stored


def looks_ahead(volume: VolumeLike) -> bool:
    """Whether the volume can be told what is going to be read."""
    return bool(getattr(volume, "looks_ahead", False))


def has_chunks(volume: VolumeLike) -> bool:
    """Whether the volume lies in chunks, of which a box may spare some."""
    return getattr(volume, "chunks", None) is not None


def stored_type(volume: VolumeLike) -> np.dtype[Any]:
    """Return the type in which voxels are read, which may be another than that of the values."""
    return np.dtype(getattr(volume, "disk_dtype", volume.dtype))


def refuse_complex(volume: VolumeLike) -> None:
    """Raise for complex numbers, before a voxel is read; ``Volume.numpy()`` returns them."""
    if np.dtype(volume.dtype).kind == "c":
        raise UnknownFormat(
            f"{volume.name} holds complex numbers, of which no patch can be resampled.",
            do="Store magnitude and phase, or the two parts, as channels of real numbers.",
        )
