"""A volume that is made on demand: what a patch gives, for ops that cannot wait.

Where an op needs voxels as they are after the ops before it, those become a volume of their own,
on the grid of the plan so far. It is as lazy as a file: a read of a region realizes that region.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from ...core import ChunkGrid, Grid, OrientedBox, Region
from ...core.remembered import Remembered, cached_property
from ...volumes.chunks.chunked_array import Needed
from ...volumes.header import Header, Triple, affine_entries
from ..ops.op import is_hard
from ..plans.matrices import one_after_another
from ..plans.voxel_box import without_noise
from ..volume_like import stored_of, stored_type
from .realized_volume import RealizedVolume

if TYPE_CHECKING:
    from ..plans.plan import SpatialPlan
    from .lazy_patch import LazyPatch


# Voxels along each axis of a tile. Patches of 96 touch a few; one costs a call of the kernel and,
# where value ops look around, their halo: 1.4 times the voxels for a blur with sigma 1.
TILE = 64
LEAST_TILE = 8
# What one tile may read of the volume: a grid with voxels eight times as large reads 512 for one.
TILE_SOURCE_BYTES = 32 * 1024**2


def _bytes(array: NDArray[Any]) -> int:
    return array.nbytes


TILES: Remembered[NDArray[Any]] = Remembered(most=0, weigh=_bytes)
"""The tiles that this process keeps in memory, for chains that ask for it."""


_PROCESSES = [1]


def divide_tiles(processes: int) -> None:
    """Take this process for one of several that share what their chains may keep in memory.

    Their tiles stay as long as they do: chains run elsewhere, and send what is to be made.
    """
    _PROCESSES[0] = max(1, processes)
    _USERS.add(divide_tiles)


_USERS: WeakSet[Any] = WeakSet()
_WATCHED: WeakSet[Any] = WeakSet()


def use_tiles(user: Any) -> None:
    """Take ``user`` for one who reads what this process keeps, until it forgets it, or is gone."""
    _USERS.add(user)
    if user not in _WATCHED:
        _WATCHED.add(user)
        weakref.finalize(user, _forget_unused).atexit = False


def use_tiles_alone(user: Any) -> None:
    """Take a chain, or a volume of one, for a user where no loader is: loaders speak for theirs."""
    if user not in _USERS and not list(_USERS):
        use_tiles(user)


def forget_tiles(user: Any) -> None:
    """Let go of the tiles that this process keeps, and of how much they may take.

    Not as long as somebody else uses them: chains of several loaders share what is kept.
    """
    _USERS.discard(user)
    _forget_unused()


def _forget_unused() -> None:
    if not list(_USERS):  # its length counts those that are being collected
        TILES.clear()
        TILES.most = 0


class Made(NamedTuple):
    """Voxels that were computed."""

    array: NDArray[Any]
    slope: float = 1.0
    intercept: float = 0.0


@dataclass(frozen=True, eq=False)
class MadeVolume:
    """What ``patch`` gives, region by region."""

    patch: LazyPatch
    """How the voxels are made."""
    soft: bool = False
    """Whether there is more of them than the patch: all that its volume has around it."""
    because: str = ""
    """After what, in words, where no op of the patch tells: a flush, and where it was written."""
    tiled: bool = False
    """Whether it is made tile by tile: then each voxel has the same bits whatever else is read."""
    copy: Any = None
    """The volume in which what was made once is kept; None where there is none."""
    memory_bytes: int = 0
    """What tiles may take that are kept in memory, of all processes of a loader; 0 keeps none."""

    access = "made"
    """No file: voxels are computed."""
    looks_ahead = True
    """What they are computed of may lie in one."""

    @property
    def chunks(self) -> Triple | None:
        """What is read at once; None where any region may be asked for."""
        if self.copy is not None:
            return self.copy.chunks  # type: ignore[no-any-return]
        return self.tile if self.tiled else None

    @cached_property
    def tile(self) -> Triple:
        """Voxels along each axis of what is made at once; fewer where these read much.

        All, where an op looks at all: its mean is that of the volume, not of a tile.
        """
        shape = self.box.shape
        if self.patch.looks_at_all:
            return (shape[0], shape[1], shape[2])
        edge = TILE
        while edge > LEAST_TILE and self._reads(shape, edge) > TILE_SOURCE_BYTES:
            edge //= 2
        i, j, k = (min(edge, n) for n in shape)
        return i, j, k

    def _reads(self, shape: Sequence[int], edge: int) -> int:
        """Return the bytes that a tile in the middle reads, and makes on the way."""
        start = [max(0, (n - edge) // 2) for n in shape]
        stop = [min(n, a + edge) for n, a in zip(shape, start, strict=True)]
        return sum(
            int(read.region.size * read.volume.shape[0] * stored_type(read.volume).itemsize)
            + read.made_bytes
            for read in stored_reads(self.patch, self.part(Region(tuple(start), tuple(stop))))
        )

    @property
    def header(self) -> Header:
        """What a header would say of it."""
        return Header(self.shape, affine_entries(self.grid.affine, self.name), self.dtype)

    def version(self) -> str:
        """Return a digest of how it is made, and of what it is made of as it is there now."""
        from .kept_copy import made_key

        return made_key(self)

    def refuse_drawn(self) -> None:
        """Raise ``GraphError`` where something is drawn for it, so that no epoch has the same."""
        from .kept_copy import refuse_drawn

        refuse_drawn(self.patch)

    @property
    def name(self) -> str:
        """Path or URL of the stored volume, without credentials."""
        return self.patch.volume.name

    @property
    def kind(self) -> str:
        """``"intensity"`` or ``"label"``."""
        return self.patch.kind

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
            found = plan.boxes_to_output([[*low, *high]])[0]
        except ValueError:  # no way back
            return whole
        # Not one voxel larger for what rounding adds.
        size = float(max(plan.source.shape))
        faces = [without_noise(face, size) for face in found.tolist()]
        start = [min(math.ceil(a), b) for a, b in zip(faces[:3], whole.start, strict=True)]
        stop = [max(math.floor(a) + 1, b) for a, b in zip(faces[3:], whole.stop, strict=True)]
        return Region(tuple(start), tuple(stop))

    @property
    def view(self) -> Region:
        """Where the patch lies in what there is."""
        return Region(
            tuple(-a for a in self.box.start),
            tuple(n - a for n, a in zip(self.patch.plan.shape, self.box.start, strict=True)),
        )

    @property
    def is_kept(self) -> bool:
        """Whether what was made once is read again."""
        return self.copy is not None or self.memory_bytes > 0

    def part(self, region: Region) -> SpatialPlan:
        """Return the plan by which a region is made of what the patch is made of."""
        return self.part_of(self.patch.plan, region)

    def part_of(self, plan: SpatialPlan, region: Region | None = None) -> SpatialPlan:
        """Return a plan to the patch as one to a region of what there is, by default all."""
        asked = Region.of_shape(self.box.shape) if region is None else region
        start = [a + b for a, b in zip(self.box.start, asked.start, strict=True)]
        return plan.crop(start, asked.shape)

    def of_other(self, patch: LazyPatch) -> MadeVolume:
        """Return the same region of what another patch gives on the same grid: of one channel."""
        volume = replace(self, patch=patch, copy=None)
        volume.__dict__["box"] = self.box  # what another volume has around it is not asked
        return volume

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the voxels."""
        return self.patch.dtype

    @property
    def stored(self) -> Any:
        """The volume that lies in a file, below any number of these."""
        return stored_of(self.patch.volume)

    @property
    def draws(self) -> Mapping[str, Any]:
        """What the ops so far drew."""
        return self.patch.draws

    def read(self, region: Region, box: OrientedBox | None = None) -> Any:
        """Return the voxels of a region; in tiles and chunks that ``box`` spares, anything."""
        if self.copy is not None:
            return self.copy.read(region, box)
        out = np.empty((self.shape[0], *region.shape), self.dtype)
        if not self.tiled:
            return Made(self.patch.realize_plan(self.part(region), out))
        for tile in self._tiles(region, box):
            shared = tile.intersect(region)
            into, of = (shared.shift([-a for a in r.start]).slices for r in (region, tile))
            out[(slice(None), *into)] = self._made(tile)[(slice(None), *of)]
        return Made(out)

    def _tiles(self, region: Region, box: OrientedBox | None) -> list[Region]:
        """Return the tiles that a region touches; of these, where there is a box, those in it."""
        if region.is_empty:
            return []
        grid = ChunkGrid(self.box.shape, self.tile)
        tiles = [grid.region(index) for index in grid.touched(region)]
        if box is None:
            return tiles
        parts = [tile.intersect(region) for tile in tiles]
        needed = box.touches(np.array([p.start for p in parts]), np.array([p.stop for p in parts]))
        return [tile for tile, is_needed in zip(tiles, needed, strict=True) if is_needed]

    def made_for(self, region: Region, box: OrientedBox | None = None) -> Region:
        """Return what is made where a region is read: all of the tiles that it touches."""
        tiles = self._tiles(region, box) if self.tiled else ()
        if not tiles:
            return region
        start = np.min([tile.start for tile in tiles], axis=0).tolist()
        stop = np.max([tile.stop for tile in tiles], axis=0).tolist()
        return Region(tuple(start), tuple(stop))

    def _made(self, tile: Region) -> NDArray[Any]:
        if not self.memory_bytes:
            return self._realized(tile)
        use_tiles_alone(self)  # its chain may be gone
        TILES.most = max(TILES.most, self.memory_bytes // _PROCESSES[0])
        return TILES.get_or((self._kept_as, tile), lambda: self._realized(tile))

    def _realized(self, tile: Region) -> NDArray[Any]:
        out = np.empty((self.shape[0], *tile.shape), self.dtype)
        return self.patch.realize_plan(self.part(tile), out)

    @cached_property
    def _kept_as(self) -> str:
        from .kept_copy import made_key, refuse_drawn

        refuse_drawn(self.patch)
        return made_key(self, opened=True)

    def prefetch(self, region: Region, box: OrientedBox | None = None) -> Any:
        """Begin to bring in what :meth:`read` is going to ask for."""
        if self.copy is not None:
            return self.copy.prefetch(region, box) if self.copy.looks_ahead else None
        if self.tiled:
            tiles = self._tiles(region, box)
            if self.memory_bytes:
                tiles = [tile for tile in tiles if TILES.get((self._kept_as, tile)) is None]
            if not tiles:
                return None
            start = np.min([tile.start for tile in tiles], axis=0).tolist()
            stop = np.max([tile.stop for tile in tiles], axis=0).tolist()
            region = Region(tuple(start), tuple(stop))
        return self.patch.prefetch_plan(self.part(region))

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def made_of(
    patch: LazyPatch, before: LazyPatch, soft: bool = False, because: str = "", **how: Any
) -> LazyPatch:
    """Return ``patch`` on the voxels that ``before`` gives, in the place of those that it had."""
    made = MadeVolume(before, soft, because, **how)
    pending = replace(patch.pending, references={made.name: made})
    return replace(patch, volume=made, pending=pending)


class StoredRead(NamedTuple):
    """What a patch reads of a file, through any number of made volumes."""

    volume: Any
    """The stored volume, or a level of it."""
    region: Region
    """The voxels that are read of that."""
    level: int = 0
    """How many levels coarser than the volume; 0 for itself."""
    box: OrientedBox | None = None
    """Where in the region they are needed, if that may spare chunks."""
    made_bytes: int = 0
    """Bytes of the voxels that are made on the way, beside those of the patch."""

    @property
    def needed(self) -> Needed | None:
        """The chunks that are read; None where every voxel can be read alone."""
        found: Needed | None = self.volume.needed(self.region, self.box)
        return found


def stored_reads(
    patch: LazyPatch, plan: SpatialPlan | None = None, *, through: bool = False
) -> tuple[StoredRead, ...]:
    """Return what a patch, or a soft crop of it on ``plan``, reads; through made volumes.

    Whoever asks what will be read asks here: those who count, negotiate, join and explain. One for
    each file: several where the channels of several are stacked. Where a made volume is kept in a
    copy, that is what is read; with ``through`` what the copy was made of.
    """
    if patch.members:
        together: Any = patch
        wide = patch.widened(patch.plan if plan is None else plan)
        plans = [(one, together.plan_of(one, wide)) for one in patch.members]
        return tuple(read for one, its in plans for read in stored_reads(one, its, through=through))
    return tuple(read for part in patch.parts for read in _reads_of_part(part, plan, through))


def _reads_of_part(
    patch: LazyPatch, plan: SpatialPlan | None, through: bool
) -> tuple[StoredRead, ...]:
    read = patch.reads_from(plan)
    volume, region = read.volume, read.region
    if not isinstance(volume, MadeVolume):
        return (StoredRead(volume, region, read.level, read.box),)
    if volume.copy is not None and not through:
        return (StoredRead(volume.copy, region, 0, read.box),)
    if region.is_empty:
        return tuple(StoredRead(one, region) for one in _files_of(volume.stored))
    if not through:  # where voxels come from is another question
        region = volume.made_for(region, read.box)
    first, *others = stored_reads(volume.patch, volume.part(region), through=through)
    made = region.size * volume.shape[0] * volume.dtype.itemsize
    return (first._replace(made_bytes=first.made_bytes + made), *others)


def _files_of(volume: Any) -> tuple[Any, ...]:
    parts: tuple[Any, ...] = getattr(volume, "parts", (volume,))
    return parts


def read_volume(volume: Any) -> Any:
    """Return the volume that lies in a file and is read for this one."""
    while isinstance(volume, MadeVolume):
        volume = volume.patch.volume if volume.copy is None else volume.copy
    return volume


def whole_plan(patch: LazyPatch) -> SpatialPlan:
    """Return one plan from the stored volume to a patch, through any number of made ones.

    For places: it says where voxels come from, and nothing of where padding began in between.
    """
    if patch.members:
        return whole_plan(patch.members[0])
    if isinstance(patch.volume, RealizedVolume):
        return one_after_another(whole_plan(patch.volume.realized_from), patch.plan)
    if not isinstance(patch.volume, MadeVolume):
        return patch.plan
    before = patch.volume.part_of(whole_plan(patch.volume.patch))
    return one_after_another(before, patch.plan)


def interpolations(patch: LazyPatch) -> tuple[int, int]:
    """Return how often the voxels of a patch are interpolated, and how often only copied.

    What is kept was made once, for all patches; :func:`kept` tells of it.
    """
    if len(patch.parts) > 1 or patch.members:
        interpolated, copied = map(sum, zip(*map(interpolations, patch.parts), strict=True))
        return interpolated, copied
    is_copy = int(patch.plan.is_copy)
    if not isinstance(patch.volume, MadeVolume) or patch.volume.is_kept:
        return 1 - is_copy, is_copy
    more, copies = interpolations(patch.volume.patch)
    return more + 1 - is_copy, copies + is_copy


def kept(patch: LazyPatch) -> str:
    """Return in words what of a patch is made once and kept; empty if nothing is."""
    if patch.members:
        return "; ".join(dict.fromkeys(filter(None, map(kept, patch.members))))
    volume = patch.volume
    if not isinstance(volume, MadeVolume):
        return ""
    if not volume.is_kept:
        return kept(volume.patch)
    more, copies = interpolations(volume.patch)
    return (
        f"{volume.because}: {more} interpolations and {copies} copies for each volume, "
        "beside those of each patch"
    )


def breaks(patch: LazyPatch) -> tuple[str, ...]:
    """Return what breaks the fusion of a patch, first things first, and where it was written."""
    if patch.members:
        return tuple(dict.fromkeys(what for member in patch.members for what in breaks(member)))
    if not isinstance(patch.volume, MadeVolume) or patch.volume.is_kept:
        return ()
    made = patch.volume.patch
    by = [step for step in made.values if not step.op.commutes]
    told = [f"{step.op.waited_for}{f' at {step.origin}' if step.origin else ''}" for step in by]
    because = dict.fromkeys(step.op.late_because for step in by if step.op.late_because)
    why = f" ({'; '.join(because)})" if because else ""
    by_flush = patch.volume.because or "flush"
    return (*breaks(made), (" and ".join(told) or _cut(made) or by_flush) + why)


def asks_voxels(patch: LazyPatch) -> bool:
    """Whether where a patch lies, or how large it is, follows from voxels."""
    steps = [step for step in patch.pending.steps if step.recorded is None]
    inside = (op for step in steps for chain in getattr(step.op, "members", ()) for _, op in chain)
    ops = [*(step.op for step in steps), *inside]
    made = (patch.volume.patch,) if isinstance(patch.volume, MadeVolume) else ()
    asks = any(getattr(op, "asks_stored", False) for op in ops)
    return asks or any(map(asks_voxels, patch.members or made))


def _cut(made: LazyPatch) -> str:
    """Return the hard crop after which a volume from another grid begins anew, if one does."""
    steps = made.pending.steps if made.pending.moving is not None else ()
    last = next((step for step in reversed(steps) if is_hard(step.op)), None)
    if last is None:
        return ""
    place = f" at {last.origin}" if last.origin else ""
    return f"{last.op.name}{place} (a hard crop of a volume that was brought to another grid)"
