"""Volumes of patches: made on demand, kept in a copy, or realized and opened again.

An op that needs the result of earlier ops turns it into a virtual volume, on the grid of the plan
so far. A virtual volume is as lazy as a file: a read of a region realizes that region. A tensor
from ``realize()`` has no position or kind of its own; its patch provides them.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import weakref
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from ...core import ChunkGrid, Grid, Region, Sample
from ...core.errors import CacheBusy, DestinationBusy, GraphError, SampleError
from ...core.lru_cache import LRUCache, cached_property
from ...intensity.value_op import same_as
from ...storage.content import behaviour_digest, content_key, opened_key
from ...storage.disk_cache import own_folder
from ...storage.location import is_url
from ...storage.volume_cache import LOCK_TIMEOUT
from ...volumes import Volume
from ...volumes.axis_map import AxisMap
from ...volumes.backend import Backend, needed_of
from ...volumes.chunks.chunked_array import NeededChunks
from ...volumes.conversion.convert import open_copy, version_of, write_planned
from ...volumes.conversion.convert_plan import ConvertPlan, plan_conversion
from ...volumes.conversion.destination import destination_of
from ...volumes.header import Header, Triple, affine_entries, affine_matrix
from ...volumes.scheme import ReadScheme, SchemeRefusal, StoreLayout
from ...volumes.session import Source
from ...volumes.source import LocatedSource, Options
from ...volumes.voxels import Voxels
from ..plans.mapping import without_noise
from ..plans.plan import SpatialPlan
from .patch_facts import channel_names, times_of

# Part of every name: higher when resampling gives other bits, so that nothing old is read.
_REVISION = 1
# Voxels in memory are hashed in pieces: a non-contiguous piece is copied.
_PIECE_BYTES = 32 * 1024**2
_DIGESTS: LRUCache[str] = LRUCache()
# Edge of a tile in voxels: a blur with sigma 1 costs 1.4 times the voxels of a tile.
TILE = 64
LEAST_TILE = 8
# Limit of a tile's reads: a grid with voxels eight times as large reads 512 per voxel.
TILE_SOURCE_BYTES = 32 * 1024**2


TILES: LRUCache[NDArray[Any]] = LRUCache(most=0, weigh=lambda array: array.nbytes)
"""Tiles that this process caches, for chains with ``memory_bytes``."""

_PROCESSES = [1]


def divide_tiles(processes: int) -> None:
    """Register this process as one of several that share the tile memory of their chains."""
    # Tiles live as long as this process: its chains run elsewhere and send the regions to make.
    _PROCESSES[0] = max(1, processes)
    _USERS.add(divide_tiles)


_USERS: WeakSet[Any] = WeakSet()
_WATCHED_VOLUMES: WeakSet[Any] = WeakSet()


def use_tiles(user: Any, *, alone: bool = False) -> None:
    """Register ``user`` as a user of this process's tiles, until it forgets them or dies.

    With ``alone``, for a chain or its volume, only if no loader is registered for them.
    """
    if user in _USERS or (alone and list(_USERS)):
        return
    _USERS.add(user)
    if user not in _WATCHED_VOLUMES:
        _WATCHED_VOLUMES.add(user)
        weakref.finalize(user, _forget_unused).atexit = False


def forget_tiles(user: Any) -> None:
    """Release the tiles that this process keeps, and their memory limit."""
    # Keeps them while others use them: chains of several loaders share tiles.
    _USERS.discard(user)
    _forget_unused()


def _forget_unused() -> None:
    if not list(_USERS):  # len() would include dying objects
        TILES.clear()
        TILES.most = 0


class StackedVolumes:
    """A stacked volume whose parts are replaced for reading."""

    # Some parts may be in memory; all other attributes come from ``whole``.

    def __init__(self, whole: Any, parts: Sequence[Any]) -> None:
        self._whole = whole
        self.parts = tuple(parts)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_whole":  # missing during unpickling
            raise AttributeError(name)
        return getattr(self._whole, name)


@dataclass(frozen=True, eq=False)
class VirtualVolume:
    """The voxels of ``patch``, made region by region."""

    patch: Any  # the ``LazyPatch`` by which the voxels are made
    soft: bool = False
    """Whether the volume extends past the patch, to all that the patch's volume has around it."""
    because: str = ""
    """Cause for ``explain`` if no op of the patch is the cause: a flush, with its line."""
    is_tiled: bool = False
    """Whether it is made in tiles: then a voxel has the same bits in every read."""
    copy: Any = None  # the volume in which the kept voxels are stored; None without a copy
    memory_bytes: int = 0
    """Memory for kept tiles, of all processes of a loader; 0 keeps none."""

    access = "made"  # no file: voxels are computed
    looks_ahead = True  # a source may be a file

    @property
    def chunks(self) -> Triple | None:
        """Shape of a unit read; None if any region may be read."""
        if self.copy is not None:
            return self.copy.chunks  # type: ignore[no-any-return]
        return self.tile if self.is_tiled else None

    @cached_property
    def tile(self) -> Triple:
        """Voxels of a tile along each axis; fewer if a tile would read too much."""
        # The whole, if an op uses all voxels: its mean is that of the volume, not of a tile.
        i, j, k = self.box.shape
        if self.patch.looks_at_all:
            return i, j, k
        edge = TILE
        while edge > LEAST_TILE and self._bytes_read(edge) > TILE_SOURCE_BYTES:
            edge //= 2
        return min(edge, i), min(edge, j), min(edge, k)

    def _bytes_read(self, edge: int) -> int:
        """Return the bytes of a central tile: its reads and its intermediates."""
        start = [max(0, (n - edge) // 2) for n in self.box.shape]
        stop = [min(n, a + edge) for n, a in zip(self.box.shape, start, strict=True)]
        return sum(
            int(read.region.size * read.volume.shape[0] * read.stored_type.itemsize)
            + read.made_bytes
            for read in self.patch.reads(self.part(Region(tuple(start), tuple(stop))))
        )

    @property
    def header(self) -> Header:
        """Header of the volume as if it were stored."""
        source = self.patch.volume
        unit = "" if getattr(source, "has_given_affine", False) else source.header.file_unit
        affine = affine_entries(self.grid.affine, self.name)
        names = channel_names(self.patch)
        more: Any = {"file_unit": unit, "channel_names": names, "times": times_of(self.patch)}
        return Header(self.shape, affine, self.dtype, **more)

    def version(self) -> str:
        """Return a digest of the ops and of the current source content."""
        return digest_of_made(self)

    def refuse_drawn(self) -> None:
        """Raise ``GraphError`` if an op draws, because epochs would differ."""
        refuse_drawn(self.patch)

    name = same_as("patch.volume.name")
    """Path or URL of the stored volume, without credentials."""
    names_axes = same_as("patch.volume.names_axes")
    """Whether the file of the voxels, or ``axes=``, names the axes."""
    kind = same_as("patch.kind")
    """``"intensity"`` or ``"label"``."""
    dtype = same_as("patch.dtype")
    """Type of the voxels."""

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(C, I, J, K)."""
        i, j, k = self.box.shape
        return (self.patch.shape[0], i, j, k)

    @property
    def grid(self) -> Grid:
        """Grid of the plan so far, with its surroundings."""
        return self.part(Region.of_shape(self.box.shape)).grid

    @cached_property
    def box(self) -> Region:
        """Return the available box, in voxels of the patch: the patch itself, or more."""
        plan = self.patch.plan
        whole = Region.of_shape(plan.shape)
        if not self.soft:
            return whole
        low, high = np.array(plan.bounds.start) - 0.5, np.array(plan.bounds.stop) - 0.5
        try:
            extent = plan.boxes_to_output([[*low, *high]])[0]
        except ValueError:  # not invertible
            return whole
        size = float(max(plan.source.shape))
        faces = [without_noise(face, size) for face in extent.tolist()]
        start = [min(math.ceil(a), b) for a, b in zip(faces[:3], whole.start, strict=True)]
        stop = [max(math.floor(a) + 1, b) for a, b in zip(faces[3:], whole.stop, strict=True)]
        return Region(tuple(start), tuple(stop))

    @property
    def view(self) -> Region:
        """Region of the patch in the available box."""
        return Region.of_shape(self.patch.plan.shape).shift([-a for a in self.box.start])

    @property
    def is_kept(self) -> bool:
        """Whether voxels are made once and read again."""
        return self.copy is not None or self.memory_bytes > 0

    def part(self, region: Region) -> SpatialPlan:
        """Return the plan of a region, from the source of the patch."""
        return self.part_of(self.patch.plan, region)

    def part_of(self, plan: SpatialPlan, region: Region | None = None) -> SpatialPlan:
        """Return a plan to the patch as one to a region of the box, by default all."""
        target = Region.of_shape(self.box.shape) if region is None else region
        return plan.crop(target.shift(self.box.start).start, target.shape)

    def of_other(self, patch: Any) -> VirtualVolume:
        """Return the same region of another patch on the same grid, such as one channel."""
        volume = replace(self, patch=patch, copy=None)
        volume.__dict__["box"] = self.box  # the box of another volume may differ
        return volume

    @property
    def stored_volume(self) -> Any:
        """The stored volume below any number of virtual ones."""
        return getattr(self.patch.volume, "stored_volume", self.patch.volume)

    def read(self, region: Region) -> Any:
        """Return the voxels of a region; tiles and chunks outside its box hold any values."""
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
        """Return the tiles that a region touches, or those that its box touches."""
        if region.is_empty or not self.is_tiled:
            return []
        grid = ChunkGrid(self.box.shape, self.tile)
        ends = zip(*grid.bounds(grid.touched_parts(region)), strict=True)
        return [Region(tuple(start), tuple(stop)) for start, stop in ends]

    def made_for(self, region: Region) -> Region:
        """Return the region that a read makes: all tiles that it touches."""
        around = _around(self._tiles(region))
        return region if around is None else around

    def _make(self, tile: Region) -> NDArray[Any]:
        if not self.memory_bytes:
            return self._realize(tile)
        use_tiles(self, alone=True)  # its chain may be gone
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
        """Begin to prefetch the voxels that :meth:`read` needs."""
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
    """The result of ``realize()``, opened again: voxels in memory, on the patch's grid."""

    may_round = False

    # Statistics use these voxels, because functions may have changed them.

    patch: Any  # the source ``LazyPatch``

    name = same_as("patch.volume.name")
    """Path or URL of the stored volume, without credentials."""
    names_axes = same_as("patch.volume.names_axes")
    """Whether the file of the voxels, or ``axes=``, names the axes."""

    def of_other(self, patch: Any) -> RealizedVolume:
        """Return the voxels as those of another patch on the same grid, such as one channel."""
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

    @property
    def grid(self) -> Grid:
        """Grid of the voxels, whose axes are those of the patch."""
        grid = super().grid
        return Grid(grid.shape, grid.affine, self.patch.plan.axes)

    def _of(self, source: Source, kind: str) -> Volume:
        """Return the same voxels in another arrangement, with the same patch."""
        affine = None if self._affine is None else affine_matrix(self._affine)
        volume = RealizedVolume.of_source(source, kind, affine)
        assert isinstance(volume, RealizedVolume)
        volume.patch = self.patch
        return volume


def opened_again(voxels: Any, patch: Any, kind: str, options: Mapping[str, Any]) -> RealizedVolume:
    """Return the volume of an array or tensor at the place of a patch."""
    voxels = voxels[..., None] if patch.plan.is_flat else voxels
    volume = RealizedVolume(voxels, affine=patch.affine, kind=kind, **options)
    volume.patch = patch
    return volume


def realized_patch(sample: Sample, key: str) -> Any:
    """Return the patch whose grid a key's array has; None without ``realize()``."""
    # A new key has the first grid of its size. An array of a changed size is a SampleError.
    lazy: dict[str, Any] = {k: p for k, p in sample.patches.items() if hasattr(p, "with_pending")}
    shape = tuple(sample[key].shape)

    def fits(patch: Any) -> bool:
        own: tuple[int, ...] = patch.shape[1:]
        return own == (shape[-len(own) :] if len(shape) > 2 else (*shape, 1)[: len(own)])

    if key not in lazy:
        return next(filter(fits, lazy.values()), None)
    if not fits(lazy[key]):
        msg = f"{key!r} was realized as {lazy[key].shape} and is {shape} now"
        do = f"Say where it lies: ⟦open_volume(affine={{{key!r}: matrix}})⟧."
        raise SampleError(f"{msg}, so its affine is not known", do=do)
    return lazy[key]


def in_memory(value: Any) -> bool:
    """Whether a volume's source is an array or a tensor, which has no header."""
    modules = {kind.__module__.split(".")[0] for kind in type(value).__mro__}
    return not modules.isdisjoint(("numpy", "torch")) and hasattr(value, "shape")


# Digest of a virtual volume: its source content, its ops, and the parameters they drew. Kept
# copies are named by it, so that a changed volume gets a new name.


def digest_of_made(volume: Any, *, at_open: bool = False) -> str:
    """Return a digest of a virtual volume: its source, its ops, and their draws."""
    # ``at_open`` uses the content as opened; the default checks the files again. Reads headers.
    return _key_of(volume.patch, (volume.soft, volume.is_tiled), at_open)


def _key_of(patch: Any, flags: tuple[bool, ...], at_open: bool) -> str:
    content = functools.partial(_content_of, at_open=at_open)
    values = [
        (
            _digest_of_step(step),
            json.dumps(params),
            # The key counts only if a step draws by it or has it in its parameters.
            step.key if step.is_drawn() or '"key"' in json.dumps(params) else "",
            "" if step.mask is None else content(step.mask),
        )
        for step, params in patch.acting
    ]
    statistics = repr(
        getattr(getattr(patch.volume, "stored_volume", patch.volume), "recorded_statistics", None)
    )
    how = (
        *(_REVISION, json.dumps(patch.plan.to_json()), repr(patch.policy), str(patch.dtype)),
        *(patch.kind, patch.filled_after, values, statistics if values else "", *flags),
    )
    within = patch.volume
    if patch.members:
        members = tuple(_key_of(member, (), at_open) for member in patch.members)
        return content_key("members", (members, how))
    is_made = isinstance(within, VirtualVolume)
    of = digest_of_made(within, at_open=at_open) if is_made else content(within)
    return content_key(of, how)


def refuse_drawn(patch: Any) -> None:
    """Raise ``GraphError`` with the pipe that draws something for a patch, if one does."""
    for step in _digest_draws(patch):
        raise GraphError(
            f"{step.describe()} draws for each item and epoch, and a kept copy is the same in all",
            do="Put it after cache(), and leave it out of what is converted.",
        ).at(step.origin)


def _digest_draws(patch: Any) -> Iterator[Any]:
    volume = patch.volume
    for member in patch.members:
        yield from _digest_draws(member)
    if isinstance(volume, VirtualVolume) and not patch.members:
        yield from _digest_draws(volume.patch)
    pending = patch.pending
    plan = pending.first_plan
    for step in pending.steps:
        step_plan = pending.through_flushes(plan) if step.looks_at_stored else plan
        if step.is_drawn(step_plan):
            yield step
        plan = step.apply(plan, pending.draws[step.stream_name])
    yield from (step for step in patch.values if step.is_drawn())


def _content_of(volume: Volume, at_open: bool) -> str:
    """Return a digest of a volume's content; voxels in memory are read once."""
    if len(volume.parts) > 1:
        parts = tuple(_content_of(part, at_open) for part in volume.parts)
        return content_key("channels of", parts)
    if volume.located_source is not None:
        if at_open:
            return content_key(volume.token, (opened_key(volume), volume.axis_map_key))
        return version_of(volume)
    key = volume.content_key
    digest = key or _DIGESTS.get_or(volume.token, lambda: _digest(volume))
    return content_key(digest, (volume.axis_map_key, tuple(volume.affine.ravel().tolist())))


def _digest(volume: Volume) -> str:
    digest = hashlib.blake2b(repr((volume.shape, volume.disk_dtype)).encode(), digest_size=16)
    channels, length, *plane = volume.shape
    row = channels * int(np.prod(plane)) * volume.disk_dtype.itemsize
    step = max(1, _PIECE_BYTES // max(1, row))
    for first in range(0, length, step):
        stop = min(length, first + step)
        voxels = volume.read(Region((first, 0, 0), (stop, *plane)))
        digest.update(repr((voxels.slope, voxels.intercept)).encode())
        digest.update(np.ascontiguousarray(voxels.array).data)
    return digest.hexdigest()


def _digest_of_step(step: Any) -> str:
    """Return a digest of how an op computes: its settings, and the code of functions in these."""
    op = step.op
    own = [getattr(op, field.name) for field in fields(op)] if is_dataclass(op) else [op]
    digest = behaviour_digest(type(op).__qualname__, *own)
    if not digest:
        raise GraphError(
            f"the copy after {step.describe()} has no name: it computes with a handle, a lock "
            "or a compiled object, or reads files, arguments or the environment",
            do="Give a function at the top of a module, a partial or a dataclass that computes "
            "with its arguments alone.",
        ).at(step.origin)
    return digest


# The kept copy of a virtual volume: its location, and how it is written.
#
# The copy is a sharded zarr v3, as ``convert`` writes it, in a folder or at a URL. The first
# process that needs the copy writes it shard by shard; others wait. A copy that a killed process
# began is continued. The name is a digest of content and ops, so a change gives a new name.


class KeptCopy(Volume):
    """A volume that is written at its first read; its header is known before."""

    may_round = False

    @property
    def _copy(self) -> KeptSource:
        """The copy, of which this may be a channel."""
        source: Any = self._source
        copy: KeptSource = getattr(source, "source", source)
        return copy

    @property
    def place(self) -> str:
        """The folder or URL in which it is kept, without credentials."""
        return destination_of(self._copy.place, self._copy.storage_options).name

    def layout(self, volumes: int = 1) -> StoreLayout:
        """Return how ``volumes`` copies like this one are stored, whether they are there or not."""
        plan, remote = self._copy.plan(), is_url(self._copy.place)
        return StoreLayout.of(plan.result, volumes, remote=remote, shard=plan.shard)

    def needed_chunks(self, region: Region) -> NeededChunks | None:
        """Return the chunks that a read needs, of all channels, whether they are there or not."""
        return needed_of(self._copy.plan().result, region)

    def _of(self, source: Source, kind: str) -> Volume:
        return KeptCopy.of_source(source, kind)

    def adjust(self, scheme: ReadScheme) -> ReadScheme | SchemeRefusal:
        """Return the scheme unchanged: a copy follows it."""
        return scheme


@dataclass(frozen=True, eq=False)
class KeptSource:
    """The copy of a made volume; pickles as its source and settings."""

    volume: VirtualVolume  # source of the copy
    place: str = field(repr=False)  # absolute folder or URL of all copies
    chunk: int | None = None  # edge of the decode unit in voxels; None: default
    codec: str = "lz4"  # ``"lz4"``, ``"lz4hc"``, ``"zstd"`` or ``"none"``
    storage_options: Mapping[str, Any] = field(default_factory=dict, repr=False)  # for fsspec

    name = same_as("volume.name")
    """Path or URL of the stored volume."""

    @cached_property
    def token(self) -> str:
        """Equal for equal sources, in every process."""
        how = (self.place, self.chunk, self.codec)
        return content_key(digest_of_made(self.volume, at_open=True), how)

    def plan(self) -> ConvertPlan:
        """Return the chunk layout of the copy; reads only headers."""
        return plan_conversion(self.volume.header, chunk=self.chunk, codec=self.codec)

    def known_header(self) -> Header:
        """Return the header of the copy, whether it is there or not."""
        return self.plan().result

    def open(self) -> Backend:
        """Open the copy; write it first if none has the current content."""
        refuse_drawn(self.volume.patch)
        plan = self.plan()
        key = content_key(version_of(self.volume), plan.fingerprint())
        if not is_url(self.place):
            # No size limit: the user owns this folder.
            return open_copy(own_folder(Path(self.place)), key, self.volume, plan)
        url = f"{self.place.rstrip('/')}/{key}.nii.zarr"
        target = destination_of(url, self.storage_options)
        if (target.record() or {}).get("key") != key:
            try:
                with target.lock(LOCK_TIMEOUT):
                    write_planned(self.volume, plan, target)
            except DestinationBusy as error:  # the caller reads and does not write
                raise CacheBusy(error.message, do=error.do) from error
        return LocatedSource(url, Options(storage_options=self.storage_options)).open()

    def __getstate__(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}
