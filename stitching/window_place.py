"""What the provenance of a window says of its place: on which grid, among which others."""

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
from ..volumes import Volume
from ..volumes.conversion.convert import known_version, refuse_itself
from ..volumes.registry import custom_backends
from .windows import Triple, Windows

_DO = (
    'Cut windows with lazy_patch(sampling="grid"), gather them with batch_patches(), and keep '
    "the entry meta of the batch."
)


def readers_of(volume: Any) -> list[Any]:
    """Return what the user gave as ``reader=`` for a volume and its parts."""
    sources = [part.located_source for part in getattr(volume, "parts", ())]
    return [one.options.reader for one in sources if one and one.options.reader is not None]


@dataclass(frozen=True)
class WindowPlace:
    """The place of one window."""

    case: str
    identity: tuple[int, ...]
    """Of the case: that of the window without its last entry."""
    files: Mapping[str, tuple[str, ...]]
    """Names of the stored files by key, first those of the volume whose grid counts."""
    start: Triple
    """First voxel in the grid that windows cover."""
    size: Triple
    overlap: Triple
    plan: SpatialPlan
    """Of the whole grid that windows cover, from the stored volume."""
    skips: tuple[int, int] = (0, 0)
    """How many windows a mask left out right before it, and behind it, if it is the last."""
    given_volumes: Mapping[str, Any] = field(default_factory=dict)
    """The stored volumes by key, where they are known and not by their names alone."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """For fsspec, where a name is a URL."""

    @classmethod
    def of(
        cls,
        meta: Mapping[str, Any],
        key: str | None = None,
        volumes: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> WindowPlace:
        """Return the place that one entry of ``meta`` tells; SampleError where it tells none.

        ``key`` names the volume whose grid counts; by default the first.
        """
        sources = meta.get("sources", {})
        if not sources or (key is not None and key not in sources):
            have = ", ".join(map(repr, sources)) or "none"
            raise SampleError(f"meta speaks of volumes {have}, and not of {key or 'any'!r}", do=_DO)
        name = next(iter(sources)) if key is None else key
        source = sources[name]
        draws = [one for one in meta["draws"].values() if isinstance(one, Mapping)]
        draw = next((one for one in draws if "window" in one), None)
        if draw is None:
            raise SampleError("a patch is no window of a grid", do=_DO)
        start, size, window = draw["start"], draw["size"], draw["window"]
        # Softly cut out of the whole grid, each window leads back to it.
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
        """Name of the first stored file whose grid counts."""
        return next(iter(self.files.values()))[0]

    @cached_property
    def volume(self) -> Volume | None:
        """Return the volume of that file, if it is a local one; None for others."""
        is_there = not is_url(self.file) and os.path.exists(self.file)
        return Volume(self.file) if is_there else None

    @cached_property
    def version(self) -> str:
        """Return what tells the versions of all volumes of the sample; empty where one has none."""
        try:
            versions = [known_version(volume) for volume in self._every_volume()]
        except VoxpipeError:  # no name of a file, or one that needs other options to be opened
            return ""
        return " ".join(versions) if all(versions) else ""

    @property
    def has_own_readers(self) -> bool:
        """Whether code of the user's may open a volume of the sample, of which no file tells."""
        return bool(custom_backends()) or any(map(readers_of, self._every_volume()))

    def _every_volume(self) -> list[Any]:
        volumes: list[Any] = [*self.given_volumes.values()]
        for key, names in self.files.items():
            volumes += [] if key in self.given_volumes else map(self._volume_of, names)
        return volumes

    def _volume_of(self, name: str) -> Volume:
        return Volume(name, storage_options=dict(self.options) if is_url(name) else None)

    def refuse_itself(self, destination: str) -> None:
        """Raise DestinationExists where a volume of the sample would be written over itself."""
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
        """Raise SampleError where this window leads to another grid than the first of its case."""
        plan, other = self.plan, first.plan
        # Stages speak of the stored volume: those before the grid are the same for all windows.
        same = plan.shape == other.shape and plan.stages == other.stages
        if not same or _apart(plan.matrix, other.matrix, plan.shape) >= COPY_TOLERANCE:
            msg = "windows of one volume lie on different grids: a pipe behind lazy_patch() moves"
            raise SampleError(msg, do="Put pipes that move voxels before lazy_patch().")


def _apart(one: Matrix, other: Matrix, shape: Triple) -> float:
    """Return by how many voxels two plans differ where they differ most, in a far corner."""
    low, high = extremes((one - other)[:3].ravel().tolist(), shape)
    return max(map(abs, low + high))


def _files_of(source: dict[str, Any]) -> tuple[str, ...]:
    """Return the stored files that one entry of the provenance tells of."""
    # Past the class, which writes the plan of the entry out where it is asked.
    channels = dict.get(source, "channels") or [source]
    return tuple(str(dict.__getitem__(one, "file")) for one in channels)


def _triple(values: Any) -> Triple:
    i, j, k = map(int, values)
    return (i, j, k)
