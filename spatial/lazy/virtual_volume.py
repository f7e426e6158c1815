"""Volumes of what a patch gives: made on demand, or realized and opened again.

Where an op needs voxels as they are after the ops before it, those become a volume of their own,
on the grid of the plan so far. It is as lazy as a file: a read of a region realizes that region.
A tensor that ``realize()`` made says nothing of where it lies or what it means; the patch that it
was made of does.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from ...core import ChunkGrid, Grid, Region, Sample
from ...core.errors import SampleError
from ...core.lru_cache import LRUCache, cached_property
from ...volumes import Volume
from ...volumes.axis_map import AxisMap
from ...volumes.header import Header, Triple, affine_entries, affine_matrix
from ...volumes.session import Source
from ...volumes.voxels import Voxels
from ..plans.mapping import without_noise
from ..plans.plan import SpatialPlan
from .content_digest import digest_of_made, refuse_drawn

# Voxels along each axis of a tile. Patches of 96 touch a few; one costs a call of the kernel and,
# where value ops look around, their halo: 1.4 times the voxels for a blur with sigma 1.
TILE = 64
LEAST_TILE = 8
# What one tile may read of the volume: a grid with voxels eight times as large reads 512 for one.
TILE_SOURCE_BYTES = 32 * 1024**2


TILES: LRUCache[NDArray[Any]] = LRUCache(most=0, weigh=lambda array: array.nbytes)
"""The tiles that this process keeps in memory, for chains that ask for it."""

_PROCESSES = [1]


def divide_tiles(processes: int) -> None:
    """Take this process for one of several that share what their chains may keep in memory."""
    # Their tiles stay as long as they do: chains run elsewhere, and send what is to be made.
    _PROCESSES[0] = max(1, processes)
    _USERS.add(divide_tiles)


_USERS: WeakSet[Any] = WeakSet()
_WATCHED_VOLUMES: WeakSet[Any] = WeakSet()


def use_tiles(user: Any) -> None:
    """Take ``user`` for one who reads what this process keeps, until it forgets it, or is gone."""
    _USERS.add(user)
    if user not in _WATCHED_VOLUMES:
        _WATCHED_VOLUMES.add(user)
        weakref.finalize(user, _forget_unused).atexit = False


def use_tiles_alone(user: Any) -> None:
    """Take a chain, or a volume of one, for a user where no loader is: loaders speak for theirs."""
    if user not in _USERS and not list(_USERS):
        use_tiles(user)


def forget_tiles(user: Any) -> None:
    """Let go of the tiles that this process keeps, and of how much they may take."""
    # Not as long as somebody else uses them: chains of several loaders share what is kept.
    _USERS.discard(user)
    _forget_unused()


def _forget_unused() -> None:
    if not list(_USERS):  # its length counts those that are being collected
        TILES.clear()
        TILES.most = 0


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


@dataclass(frozen=True, eq=False)
class VirtualVolume:
    """What ``patch`` gives, region by region."""

    patch: Any  # the ``LazyPatch`` by which the voxels are made
    soft: bool = False
    """Whether there is more of them than the patch: all that its volume has around it."""
    because: str = ""
    """After what, in words, where no op of the patch tells: a flush, and where it was written."""
    is_tiled: bool = False
    """Whether it is made tile by tile: then each voxel has the same bits whatever else is read."""
    copy: Any = None  # the volume in which what was made once is kept; None where there is none
    memory_bytes: int = 0
    """What tiles may take that are kept in memory, of all processes of a loader; 0 keeps none."""

    access = "made"  # no file: voxels are computed
    looks_ahead = True  # what they are computed of may lie in one

    @property
    def chunks(self) -> Triple | None:
        """What is read at once; None where any region may be asked for."""
        if self.copy is not None:
            return self.copy.chunks  # type: ignore[no-any-return]
        return self.tile if self.is_tiled else None

    @cached_property
    def tile(self) -> Triple:
        """Voxels along each axis of what is made at once; fewer where these read much."""
        # All, where an op looks at all: its mean is that of the volume, not of a tile.
        i, j, k = self.box.shape
        if self.patch.looks_at_all:
            return i, j, k
        edge = TILE
        while edge > LEAST_TILE and self._bytes_read(edge) > TILE_SOURCE_BYTES:
            edge //= 2
        return min(edge, i), min(edge, j), min(edge, k)

    def _bytes_read(self, edge: int) -> int:
        """Return the bytes that a tile in the middle reads, and makes on the way."""
        start = [max(0, (n - edge) // 2) for n in self.box.shape]
        stop = [min(n, a + edge) for n, a in zip(self.box.shape, start, strict=True)]
        return sum(
            int(read.region.size * read.volume.shape[0] * read.stored_type.itemsize)
            + read.made_bytes
            for read in self.patch.reads(self.part(Region(tuple(start), tuple(stop))))
        )

    @property
    def header(self) -> Header:
        """What a header would say of it."""
        return Header(self.shape, affine_entries(self.grid.affine, self.name), self.dtype)

    def version(self) -> str:
        """Return a digest of how it is made, and of what it is made of as it is there now."""
        return digest_of_made(self)

    def refuse_drawn(self) -> None:
        """Raise ``GraphError`` where something is drawn for it, so that no epoch has the same."""
        refuse_drawn(self.patch)

    @property
    def name(self) -> str:
        """Path or URL of the stored volume, without credentials."""
        return str(self.patch.volume.name)

    @property
    def kind(self) -> str:
        """``"intensity"`` or ``"label"``."""
        return str(self.patch.kind)

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(C, I, J, K)."""
        i, j, k = self.box.shape
        return (self.patch.shape[0], i, j, k)

    @property
    def grid(self) -> Grid:
        """Grid of the plan so far, with what is around it."""
        return self.part(Region.of_shape(self.box.shape)).grid

    @cached_property
    def box(self) -> Region:
        """Return what there is, in voxels of the patch: the patch itself, or more."""
        plan = self.patch.plan
        whole = Region.of_shape(plan.shape)
        if not self.soft:
            return whole
        low, high = np.array(plan.bounds.start) - 0.5, np.array(plan.bounds.stop) - 0.5
        try:
            extent = plan.boxes_to_output([[*low, *high]])[0]
        except ValueError:  # no way back
            return whole
        # Not one voxel larger for what rounding adds.
        size = float(max(plan.source.shape))
        faces = [without_noise(face, size) for face in extent.tolist()]
        start = [min(math.ceil(a), b) for a, b in zip(faces[:3], whole.start, strict=True)]
        stop = [max(math.floor(a) + 1, b) for a, b in zip(faces[3:], whole.stop, strict=True)]
        return Region(tuple(start), tuple(stop))

    @property
    def view(self) -> Region:
        """Where the patch lies in what there is."""
        return Region.of_shape(self.patch.plan.shape).shift([-a for a in self.box.start])

    @property
    def is_kept(self) -> bool:
        """Whether what was made once is read again."""
        return self.copy is not None or self.memory_bytes > 0

    def part(self, region: Region) -> SpatialPlan:
        """Return the plan by which a region is made of what the patch is made of."""
        return self.part_of(self.patch.plan, region)

    def part_of(self, plan: SpatialPlan, region: Region | None = None) -> SpatialPlan:
        """Return a plan to the patch as one to a region of what there is, by default all."""
        target = Region.of_shape(self.box.shape) if region is None else region
        return plan.crop(target.shift(self.box.start).start, target.shape)

    def of_other(self, patch: Any) -> VirtualVolume:
        """Return the same region of what another patch gives on the same grid: of one channel."""
        volume = replace(self, patch=patch, copy=None)
        volume.__dict__["box"] = self.box  # what another volume has around it is not asked
        return volume

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the voxels."""
        dtype: np.dtype[Any] = self.patch.dtype
        return dtype

    @property
    def stored_volume(self) -> Any:
        """The volume that lies in a file, below any number of these."""
        return getattr(self.patch.volume, "stored_volume", self.patch.volume)

    def read(self, region: Region) -> Any:
        """Return the voxels of a region; in tiles and chunks that its box spares, anything."""
        if self.copy is not None:
            return self.copy.read(region)
        if not self.is_tiled:
            return Voxels(self._realize(region))
        out = np.empty((self.shape[0], *region.shape), self.dtype)
        for tile in self._tiles(region):
            overlap = tile.intersect(region)
            into, of = (overlap.shift([-a for a in r.start]).slices for r in (region, tile))
            out[(slice(None), *into)] = self._make(tile)[(slice(None), *of)]
        return Voxels(out)

    def _tiles(self, region: Region) -> list[Region]:
        """Return the tiles that a region touches; of these, where it has a box, those in it."""
        if region.is_empty or not self.is_tiled:
            return []
        grid = ChunkGrid(self.box.shape, self.tile)
        ends = zip(*grid.bounds(grid.touched_parts(region)), strict=True)
        return [Region(tuple(start), tuple(stop)) for start, stop in ends]

    def made_for(self, region: Region) -> Region:
        """Return what is made where a region is read: all of the tiles that it touches."""
        around = _around(self._tiles(region))
        return region if around is None else around

    def _make(self, tile: Region) -> NDArray[Any]:
        if not self.memory_bytes:
            return self._realize(tile)
        use_tiles_alone(self)  # its chain may be gone
        TILES.most = max(TILES.most, self.memory_bytes // _PROCESSES[0])
        return TILES.get_or((self._kept_as, tile), lambda: self._realize(tile))

    def _realize(self, region: Region) -> NDArray[Any]:
        out = np.empty((self.shape[0], *region.shape), self.dtype)
        self.patch.realize(out, self.part(region))
        return out

    @cached_property
    def _kept_as(self) -> str:
        refuse_drawn(self.patch)
        return digest_of_made(self, at_open=True)

    def prefetch(self, region: Region) -> Any:
        """Begin to bring in what :meth:`read` is going to ask for."""
        if self.copy is not None:
            return self.copy.prefetch(region) if self.copy.looks_ahead else None
        target: Region | None = region
        if self.is_tiled:
            key = self.memory_bytes and self._kept_as
            tiles = self._tiles(region)
            target = _around([one for one in tiles if not key or TILES.get((key, one)) is None])
        return None if target is None else self.patch.prefetch(self.part(target))

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def _around(regions: Sequence[Region]) -> Region | None:
    if not regions:
        return None
    start = np.min([one.start for one in regions], axis=0).tolist()
    stop = np.max([one.stop for one in regions], axis=0).tolist()
    return Region(tuple(start), tuple(stop))


class RealizedVolume(Volume):
    """What ``realize()`` made of a patch, opened again: voxels in memory, on the patch's grid."""

    may_round = False

    # Functions may have changed them meanwhile, so statistics are those of these voxels.

    patch: Any  # the ``LazyPatch`` that they were made of

    @property
    def name(self) -> str:
        """Path or URL of the stored volume, without credentials."""
        return str(self.patch.volume.name)

    def of_other(self, patch: Any) -> RealizedVolume:
        """Return the voxels as those of another patch on the same grid: of one channel."""
        volume = copy(self)
        assert isinstance(volume, RealizedVolume)
        volume.patch = patch
        return volume

    def channels_of(self, member: Any, first: int) -> RealizedVolume:
        """Return the channels from ``first`` on, as those of a member of a stack."""
        last = first + member.shape[0]
        volume = self.with_axis_map(AxisMap.from_table("C", range(first, last)))
        assert isinstance(volume, RealizedVolume)
        volume.kind, volume.patch = member.kind, member
        return volume

    def _of(self, source: Source, kind: str) -> Volume:
        """Return the same voxels arranged otherwise: they are made of the same patch."""
        affine = None if self._affine is None else affine_matrix(self._affine)
        volume = RealizedVolume.of_source(source, kind, affine)
        assert isinstance(volume, RealizedVolume)
        volume.patch = self.patch
        return volume


def opened_again(voxels: Any, patch: Any, kind: str, options: Mapping[str, Any]) -> RealizedVolume:
    """Return the volume of an array or tensor that lies where a patch does."""
    volume = RealizedVolume(voxels, affine=patch.affine, kind=kind, **options)
    volume.patch = patch
    return volume


def realized_patch(sample: Sample, key: str) -> Any:
    """Return the patch on whose grid the array of a key lies; None if ``realize()`` made none."""
    # A new key has the grid of the first one of its size. Of a key whose array has another size now
    # the place is not known any more: a SampleError.
    lazy: dict[str, Any] = {k: p for k, p in sample.patches.items() if hasattr(p, "with_pending")}
    shape = tuple(sample[key].shape)
    spatial = shape[-3:] if len(shape) > 2 else (*shape, 1)
    fits = [patch for patch in lazy.values() if patch.shape[1:] == spatial]
    if key not in lazy:
        return fits[0] if fits else None
    if lazy[key].shape[1:] != spatial:
        msg = f"{key!r} was realized as {lazy[key].shape} and is {shape} now"
        do = f"Say where it lies: open_volume(affine={{{key!r}: matrix}})."
        raise SampleError(f"{msg}, so its affine is not known", do=do)
    return lazy[key]


def in_memory(value: Any) -> bool:
    """Whether a volume's source is an array or a tensor, which has no header."""
    modules = {kind.__module__.split(".")[0] for kind in type(value).__mro__}
    return not modules.isdisjoint(("numpy", "torch")) and hasattr(value, "shape")
