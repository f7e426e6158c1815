"""What the lazy side asks of volumes and patches: less than they are, so that others fit too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..core import Grid, OrientedBox, Region
from ..intensity import Drawn, ValueStep
from .plans.plan import SpatialPlan
from .plans.policy import Policy


class VolumeLike(Protocol):
    """What a patch asks of its volume."""

    # It may have, too: ``looks_ahead`` with ``prefetch()``, ``chunks``, ``disk_dtype``.

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

    def read(self, region: Region, box: OrientedBox | None = None) -> Any:
        """Return ``array``, (C, i, j, k) as stored, ``slope`` and ``intercept`` of a region."""


class PatchLike(Protocol):
    """What is asked of a ``LazyPatch`` by what that is made of, or asks itself."""

    @property
    def volume(self) -> Any:
        """Where its voxels come from."""

    @property
    def pending(self) -> Any:
        """What is done to them."""

    @property
    def policy(self) -> Policy:
        """How they are sampled."""

    @property
    def values(self) -> tuple[ValueStep, ...]:
        """What is done to the values afterwards."""

    @property
    def members(self) -> tuple[Any, ...]:
        """Patches that are made one by one, each into channels of its own."""

    @property
    def parts(self) -> tuple[Any, ...]:
        """A patch of each volume whose channels are stacked."""

    @property
    def plan(self) -> SpatialPlan:
        """From its index to that of its volume."""

    @property
    def whole_plan(self) -> SpatialPlan:
        """From its index to that of the stored volume."""

    @property
    def kind(self) -> str:
        """``"intensity"`` or ``"label"``."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(C, I, J, K)."""

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the result."""

    @property
    def filled_after(self) -> int:
        """How many of ``values`` come before the fill."""

    @property
    def draws(self) -> Mapping[str, Any]:
        """What each random pipe drew."""

    @property
    def acting(self) -> Sequence[tuple[ValueStep, Drawn]]:
        """The value ops that act, with what they drew."""

    @property
    def looks_at_all(self) -> bool:
        """Whether a voxel may differ with what else is asked for."""

    @property
    def read_plan(self) -> Any:
        """What is read of its volume."""

    def reads(self, plan: SpatialPlan | None = None, *, through: bool = False) -> Any:
        """Return what is read of files."""

    def realize(
        self, out: NDArray[Any] | None = None, plan: SpatialPlan | None = None
    ) -> NDArray[Any]:
        """Return what it gives on a plan, by default its own."""

    def prefetch(self, plan: SpatialPlan | None = None) -> Any:
        """Begin to bring in what that reads."""

    def with_volume(self, volume: VolumeLike) -> Any:
        """Return the patch of other voxels."""

    def explain(self) -> str:
        """Return the class of the work and the bytes that are read."""


class StackedVolumes:
    """A volume of the channels of several whose voxels come from others that stand for these."""

    # Some are in memory already, perhaps; everything else is asked of the real one.

    def __init__(self, whole: Any, parts: Sequence[Any]) -> None:
        self._whole = whole
        self.parts = tuple(parts)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_whole":  # not there yet, while it is unpickled
            raise AttributeError(name)
        return getattr(self._whole, name)


def patch_before(volume: Any) -> Any:
    """Return the patch that the volume is made of, or whose realized voxels it holds; or None."""
    return getattr(volume, "patch", None) or getattr(volume, "realized_from", None)


def stored_of(volume: Any) -> Any:
    """Return the volume that lies in a file: this one, or what it is made of."""
    return volume.stored if hasattr(volume, "patch") else volume


def stored_type(volume: VolumeLike) -> np.dtype[Any]:
    """Return the type in which voxels are read, which may be another than that of the values."""
    return np.dtype(getattr(volume, "disk_dtype", volume.dtype))
