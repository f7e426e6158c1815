"""Place of a window from its provenance: its grid, and the other windows."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..core import Grid
from ..core.errors import SampleError, VoxpipeError
from ..core.lru_cache import cached_property
from ..spatial.plans.plan import SpatialPlan
from ..spatial.plans.pull_back import COPY_TOLERANCE, Matrix, extremes
from ..storage.location import is_url
from ..volumes import Volume, custom_decoders
from ..volumes.conversion.convert import known_version, refuse_itself
from ..volumes.registry import reads_by_others
from .windows import Triple, Windows

_DO = (
    'Cut windows with lazy_patch(sampling="grid"), gather them with batch_patches(), and keep '
    "the entry meta of the batch."
)


def readers_of(volume: Any) -> list[Any]:
    """Return the user's ``reader=`` of a volume and its parts."""
    sources = [part.located_source for part in getattr(volume, "parts", ())]
    return [one.options.reader for one in sources if one and one.options.reader is not None]


@dataclass(frozen=True)
class WindowPlace:
    """The place of one window."""

    case: str
    identity: tuple[int, ...]
    """Identity of the case: that of the window without its last entry."""
    files: Mapping[str, tuple[str, ...]]
    """Names of the stored files by key, first those of the volume with the stored grid."""
    start: Triple
    """First voxel in the grid that windows cover."""
    size: Triple
    overlap: Triple
    plan: SpatialPlan
    """Plan of the windows' whole grid, from the stored volume."""
    skips: tuple[int, int] = (0, 0)
    """Windows that a mask left out right before it, and after it if it is the last."""
    given_volumes: Mapping[str, Any] = field(default_factory=dict)
    """Stored volumes by key, if they are more than a name."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of fsspec, for URLs."""

    @classmethod
    def of(
        cls,
        meta: Mapping[str, Any],
        key: str | None = None,
        volumes: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> WindowPlace:
        """Return the place from one entry of ``meta``; SampleError without a place.

        ``key`` names the volume with the stored grid; by default the first.
        """
        sources = meta.get("sources", {})
        if not sources or (key is not None and key not in sources):
            have = ", ".join(map(repr, sources)) or "none"
            raise SampleError(f"meta has the volumes {have}, and not {key or 'any'!r}", do=_DO)
        name = next(iter(sources)) if key is None else key
        source = sources[name]
        draws = [one for one in meta["draws"].values() if isinstance(one, Mapping)]
        draw = next((one for one in draws if "window" in one), None)
        if draw is None:
            raise SampleError("a patch is no window of a grid", do=_DO)
        start, size, window = draw["start"], draw["size"], draw["window"]
        # A window is a soft crop, so its plan extends to the whole grid.
        plan = SpatialPlan.from_json(source["plan"])
        if plan.shape != tuple(size):
            msg = f"windows of {size} voxels became patches of {plan.shape}"
            raise SampleError(msg, do="Put pipes that move voxels before lazy_patch().")
        whole = plan.crop([-at for at in start], window["grid"])
        return cls(
            str(meta["case"]),
            tuple(meta["identity"][:-1]),
            {one: _files_of(sources[one]) for one in (name, *sources)},
            _triple(start),
            _triple(size),
            _triple(window["overlap"]),
            whole,
            tuple(window.get("skips", (0, 0))),
            volumes or {},
            options or {},
        )

    @property
    def file(self) -> str:
        """Name of the first file of the volume with the stored grid."""
        return next(iter(self.files.values()))[0]

    @cached_property
    def volume(self) -> Volume | None:
        """Return the volume of that file, if it is a local one; None for others."""
        is_there = not is_url(self.file) and os.path.exists(self.file)
        return Volume(self.file) if is_there else None

    @cached_property
    def version(self) -> str:
        """Return the versions of all volumes of the sample; empty if one has none."""
        try:
            versions = [known_version(volume) for volume in self._every_volume()]
        except VoxpipeError:  # no file, or other options are needed
            return ""
        return " ".join(versions) if all(versions) else ""

    @property
    def has_own_readers(self) -> bool:
        """Whether a user's reader may open a volume: files do not identify it."""
        others = reads_by_others() or bool(custom_decoders())
        return others or any(map(readers_of, self._every_volume()))

    def _every_volume(self) -> list[Any]:
        volumes: list[Any] = [*self.given_volumes.values()]
        for key, names in self.files.items():
            volumes += [] if key in self.given_volumes else map(self._volume_of, names)
        return volumes

    def _volume_of(self, name: str) -> Volume:
        return Volume(name, storage_options=dict(self.options) if is_url(name) else None)

    def refuse_itself(self, destination: str) -> None:
        """Raise DestinationExists if a volume of the sample would be overwritten."""
        for volume in self.given_volumes.values():
            refuse_itself(volume, destination)
        for key, names in self.files.items():
            for name in names if key not in self.given_volumes else ():
                if is_url(name) or os.path.exists(name):
                    refuse_itself(self._volume_of(name), destination)

    @property
    def stored_grid(self) -> Grid:
        """The grid of the stored volume."""
        return self.plan.source

    @cached_property
    def is_stored(self) -> bool:
        """Whether windows cover the stored grid itself."""
        same = self.plan.shape == self.plan.source.shape and not self.plan.stages
        return same and _apart(self.plan.matrix, np.eye(4), self.plan.shape) < COPY_TOLERANCE

    def windows(self, blend: str) -> Windows:
        """Return all windows of the grid."""
        return Windows(self.plan.shape, self.size, self.overlap, cuts=blend == "crop")

    def refuse_moved(self, first: WindowPlace) -> None:
        """Raise SampleError if this window has another grid than the first of its case."""
        plan, other = self.plan, first.plan
        # Stages are in source coordinates: equal for all windows.
        same = plan.shape == other.shape and plan.stages == other.stages
        if not same or _apart(plan.matrix, other.matrix, plan.shape) >= COPY_TOLERANCE:
            msg = "windows of one volume lie on different grids: a pipe behind lazy_patch() moves"
            raise SampleError(msg, do="Put pipes that move voxels before lazy_patch().")


def _apart(one: Matrix, other: Matrix, shape: Triple) -> float:
    """Return the largest difference of two plans, at a corner, in voxels."""
    low, high = extremes((one - other)[:3].ravel().tolist(), shape)
    return max(map(abs, low + high))


def _files_of(source: dict[str, Any]) -> tuple[str, ...]:
    # dict.get, because ``Provenance`` would write out the plan.
    channels = dict.get(source, "channels") or [source]
    return tuple(str(dict.__getitem__(one, "file")) for one in channels)


def _triple(values: Any) -> Triple:
    i, j, k = map(int, values)
    return (i, j, k)
