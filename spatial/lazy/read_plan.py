"""The read plan of a patch: level, region and chunks of one volume. Single source for all callers.

A plan that takes every fourth voxel of a volume reads 64 times its output, for smoothing. Many
volumes are stored at several smoothed resolutions. A level is fine enough if neighbours of the
output are at least one of its voxels apart: if no singular value of the matrix from it is below 1.
The remaining scale is smoothed as usual.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...core import ChunkGrid, Grid, Region
from ...core.context import ContextKey, values_here
from ...core.convert_dtype import convert_dtype
from ...core.errors import BudgetExceeded, UnknownFormat
from ...core.lru_cache import cached_property
from ...core.memory import usable_memory
from ...intensity import Epilogue, SelectChannels
from ...intensity.value_op import Halo
from ...intensity.value_step import Acting, ValueStep, total_halo
from ...volumes import Volume
from ...volumes.axis_map import AxisMap
from ...volumes.catalog.whole_pass import at_level, coarser_levels
from ...volumes.chunks.chunked_array import NeededChunks
from ...volumes.voxels import Voxels
from ..ops.grid_op import of_source
from ..plans.plan import SpatialPlan
from ..plans.policy import LEVEL, Policy, refuse_fill
from ..plans.pull_back import source_box, source_region, unchanging_beyond
from ..plans.stages import Clip
from ..resampling.native_resampler import SourceVoxels
from ..resampling.resample import resample
from .patch_facts import channel_names
from .virtual_volume import VirtualVolume

# Headers give 1.9999 for 2. A hundredth of a voxel of bandwidth is invisible.
_ENOUGH = 0.99
# Voxels without chunks are counted in cubes of this edge; the operating system caches them.
CUBE = 32
_FLOAT32_BYTES = 4


class ChunkBytes(NamedTuple):
    """One chunk that a patch needs."""

    chunk: tuple[Any, ...]  # the volume, the level, and the index
    bytes: int  # decoded


def bounded_halo(
    halo: Halo, plan: SpatialPlan, policy: Policy, acting: Sequence[Acting], channels: int
) -> tuple[Halo, int]:
    """Return a large halo, cut where values stop to change, and the patch's bytes with it."""
    if not (plan.stages or policy.antialias or policy.padding == "reflection"):
        far = unchanging_beyond(plan.rows, plan.shape, plan.bounds, policy.mode, halo)
        i, j, k = map(min, halo, total_halo(acting, plan.grid, far))
        halo = (i, j, k)
    shape = [n + 2 * h for n, h in zip(plan.shape, halo, strict=True)]
    size, limit = _FLOAT32_BYTES * channels * math.prod(shape), usable_memory()
    if limit and size > limit:
        step = max(acting, key=lambda one: max(one[0].op.halo(one[1], plan.grid)))[0]
        spacing = ", ".join(f"{length:g}" for length in plan.grid.spacing)
        where = f"on voxels of {spacing} mm, looks at {max(halo)} voxels around a patch"
        what = f"{step.op.describe()}, {where}: {size} bytes, and this process may use {limit}"
        do = "Check sigma and its unit, and the spacing of the file; unit='voxel' counts voxels."
        raise BudgetExceeded(what, do=do).at(step.origin)
    return halo, size


@dataclass(frozen=True, eq=False)
class ReadPlan:
    """The read of one volume for a patch, and the plan and policy to resample it."""

    volume: Any  # a stored volume, a level of it, a kept copy, or a virtual volume
    plan: SpatialPlan
    """From index of the patch (with the halo of value ops) to index of this volume."""
    policy: Policy  # sampling
    region: Region
    """The region to read, empty if all is fill; with a box where a box may skip chunks."""
    level: int = 0  # number of levels above the patch's volume; 0 for that itself
    stored_channels: int = 0
    """Channels of the patch's volume, if only some of them are read; else 0."""
    made_bytes: int = 0
    """Bytes of intermediate virtual volumes, and of a patch with a wide halo."""

    @classmethod
    def of(cls, volume: Any, plan: SpatialPlan, policy: Policy) -> ReadPlan:
        """Return the read for ``plan``: from the volume, or from a level that is fine enough."""
        level = 0
        if policy.antialias == LEVEL and isinstance(volume, Volume):
            volume, plan, level = _coarsest_level(volume, plan)
        how = (policy.mode, policy.padding, policy.antialias is not False)
        place = (plan.rows, plan.shape, plan.bounds, *how, plan.moves)
        region = source_region(*place)
        if not region.is_empty and getattr(volume, "chunks", None) is not None:
            # Labels that are rounded before resampling need all chunks.
            needs_all = getattr(volume, "rounds", False) and _stored_fill(volume, policy) is None
            box = None if needs_all else source_box(*place)
            region = Region(region.start, region.stop, box)
        return cls(volume, plan, policy, region, level)

    @property
    def stored_type(self) -> np.dtype[Any]:
        """Type of the voxels on disk; their values may have another type."""
        dtype: np.dtype[Any] = getattr(self.volume, "disk_dtype", self.volume.dtype)
        return dtype

    @cached_property
    def needed_chunks(self) -> NeededChunks | None:
        """Return the chunks that are read; None where every voxel can be read alone."""
        need: NeededChunks | None = self.volume.needed_chunks(self.region)
        return need

    def read_bytes(self, *, whole_chunks: bool) -> int:
        """Return the stored bytes of the region, or of all chunks it touches."""
        need = self.needed_chunks if whole_chunks else None
        voxels = self.region.size * self.volume.shape[0] if need is None else need.voxels
        return int(voxels * self.volume.disk_dtype.itemsize)

    def chunks(self, name: tuple[Any, ...]) -> Iterator[ChunkBytes]:
        """Yield the chunks to read, prefixed with the volume's ``name``; none without a file."""
        if self.region.is_empty or not isinstance(self.volume, Volume):
            return
        need = self.needed_chunks
        if need is None:
            shape = self.volume.spatial_shape
            cube = tuple(min(CUBE, n) for n in shape)
            cubes = ChunkGrid(shape, cube).touched_parts(self.region)
            size = math.prod(cube) * self.volume.shape[0] * self.volume.disk_dtype.itemsize
            need = NeededChunks(cubes, 0, size)
        for index in need.chunks.tolist():
            yield ChunkBytes((*name, self.level, *index), need.chunk_bytes)

    def file_reads(self, *, through: bool = False) -> tuple[ReadPlan, ...]:
        """Return the file reads: this one, or those of a virtual volume's source."""
        # A kept copy counts as the file; ``through`` returns the reads of the copy's source.
        volume, region = self.volume, self.region
        if not isinstance(volume, VirtualVolume):
            return (self,)
        if volume.copy is not None and not through:
            return (replace(self, volume=volume.copy),)
        if region.is_empty:
            files = getattr(volume.stored_volume, "parts", (volume.stored_volume,))
            return tuple(replace(self, volume=one) for one in files)
        if not through:  # ``through`` asks for the source only
            region = volume.made_for(region)
        first, *others = volume.patch.reads(volume.part(region), through=through)
        size = region.size * volume.shape[0] * volume.dtype.itemsize
        return (replace(first, made_bytes=self.made_bytes + first.made_bytes + size), *others)

    def resample_into(
        self, out: NDArray[Any], policy: Policy, epilogue: Epilogue | None
    ) -> SourceVoxels:
        """Read the region and write the patch to ``out``; return the voxels read."""
        # ``policy`` is the own one, perhaps with another fill.
        volume, plan, region, fill = self.volume, self.plan, self.region, None
        if policy.fill and out.dtype.kind in "iu":
            refuse_fill(policy.fill, out.dtype, volume.name)
        i, j, k = region.start
        if region.is_empty:
            nothing = np.empty((volume.shape[0], 0, 0, 0), np.uint8)
            source = SourceVoxels(nothing, (i, j, k), plan.bounds)
        else:
            if getattr(volume, "rounds", False):
                fill = _stored_fill(volume, policy)
            voxels = volume.read(region) if fill is None else volume.read(region, rounds=False)
            if voxels.array.dtype.kind == "c":  # ``Volume.numpy()`` returns them
                msg = f"{volume.name} holds complex numbers, of which no patch can be resampled."
                do = "Store magnitude and phase, or the two parts, as channels of real numbers."
                raise UnknownFormat(msg, do=do)
            source = SourceVoxels(
                voxels.array, (i, j, k), plan.bounds, voxels.slope, voxels.intercept
            )
            show = None if isinstance(volume, VirtualVolume) else values_here().get(SHOW)
            if show is not None and volume.kind != "label":
                show(source)
        if fill is None:
            resample(
                source, plan.rows, policy, out, plan.kernel_stages, epilogue=epilogue, region=region
            )
        else:
            self._resample_labels(source, replace(policy, fill=fill), out, epilogue)
        if isinstance(volume, Volume):
            volume.refuse_change()  # not before: a mapped file is read while it is resampled
        return source

    def _resample_labels(
        self, source: SourceVoxels, policy: Policy, out: NDArray[Any], epilogue: Epilogue | None
    ) -> None:
        """Write the labels of the nearest stored numbers; ``policy`` has a stored fill."""
        dtype = source.array.dtype.newbyteorder("=")
        numbers = out if out.dtype == dtype and epilogue is None else np.empty(out.shape, dtype)
        bare = replace(source, slope=1.0, intercept=0.0)
        stages, region = self.plan.kernel_stages, self.region
        resample(bare, self.plan.rows, policy, numbers, stages, region=region)
        read = Voxels(numbers, source.slope, source.intercept)
        labels = self.volume.round_labels(read, region).array
        labels = labels if epilogue is None else epilogue.of(labels)
        if labels is not out:
            out[...] = convert_dtype(labels, out.dtype)


def _stored_fill(volume: Any, policy: Policy) -> float | None:
    """Return the fill as a stored number if labels are rounded after resampling; else None."""
    if policy.mode != "nearest" or policy.padding == "zeros":
        return None
    fill: float | None = volume.stored_fill(policy.fill)
    return fill


def select_first(volume: Any, values: Sequence[ValueStep]) -> tuple[Any, int]:
    """Return the volume of the channels that the first steps select, and their number."""
    if type(values[0].op) is not SelectChannels:  # most chains
        return volume, 0
    picks, count = tuple(range(volume.shape[0])), 0
    for step in values:
        own = step.op.kept_channels()
        if own is None:
            break
        step.channels(len(picks))  # refuses missing channels
        picks, count = tuple(picks[index] for index in own), count + 1
    if picks == tuple(range(volume.shape[0])):
        return volume, count
    return volume.with_axis_map(AxisMap.from_table("C", picks)), count


SHOW: ContextKey[Callable[[SourceVoxels], None] | None] = ContextKey(None)
"""Receives the stored voxels of each image that is resampled."""


def _coarsest_level(volume: Volume, plan: SpatialPlan) -> tuple[Volume, SpatialPlan, int]:
    """Return the coarsest level that is fine enough, the plan from it, and its number."""
    cut = plan.bounds != plan.source.region or any(isinstance(s, Clip) for s in plan.stages)
    levels = () if cut else coarser_levels(volume)
    for number in range(len(levels), 0, -1):
        linear = np.linalg.solve(levels[number - 1], plan.matrix)[:3, :3]
        if np.linalg.svd(linear, compute_uv=False).min() >= _ENOUGH:
            coarse = at_level(volume, number)
            # Uses the plan's grid: volumes of a case may differ in the last digits.
            grid = Grid(coarse.spatial_shape, plan.source.affine @ levels[number - 1])
            return coarse, of_source(plan, grid), number
    return volume, plan, 0


# The record of the reads of a patch, as plain data.


class Provenance(dict[str, Any]):
    """Source of a patch's voxels: plain data, and two entries made on access."""

    # ``plan`` (for ``SpatialPlan.from_json``) and ``affine`` are written out at the first access to
    # them or to the whole, so ``json.dumps``, ``==`` and ``dict()`` work as for any dictionary.
    # Changes write them out first. A batch from a worker carries some 300 bytes for the two.

    _plan: Any = None

    def __missing__(self, key: str) -> Any:
        self._write_out()
        if dict.__contains__(self, key):
            return dict.__getitem__(self, key)
        raise KeyError(key)

    def _write_out(self) -> None:
        if self._plan is None:
            return
        plan = recorded_plan(self)
        self._plan = None
        dict.update(self, affine=plan.affine.tolist(), plan=plan.to_json())

    def __reduce__(self) -> tuple[Any, ...]:
        plan = _pack(self._plan) if isinstance(self._plan, SpatialPlan) else self._plan
        # Copying it would write it out.
        return Provenance, (dict(dict.items(self)),), {"_plan": plan}


def _seen_whole(name: str) -> Any:
    method = getattr(dict, name)

    def of_the_whole(self: Provenance, *args: Any, **kwargs: Any) -> Any:
        for one in (self, *args):
            if isinstance(one, Provenance):
                one._write_out()
        return method(self, *args, **kwargs)

    of_the_whole.__name__ = name
    return of_the_whole


for _name in (
    *("__contains__", "__delitem__", "__eq__", "__ior__", "__iter__", "__len__", "__ne__"),
    *("__or__", "__repr__", "__reversed__", "__ror__", "__setitem__", "clear", "copy", "get"),
    *("items", "keys", "pop", "popitem", "setdefault", "update", "values"),
):
    setattr(Provenance, _name, _seen_whole(_name))


def _pack(plan: SpatialPlan) -> tuple[Any, ...]:
    """Return a plan without its matrix in few bytes: pickling takes ten times as long."""
    # One object for all volumes of a sample, pickled once.
    state: tuple[Any, ...] | None = plan.__dict__.get("_state")
    if state is None:
        bounds = (*plan.bounds.start, *plan.bounds.stop)
        shapes = struct.pack("12q", *plan.source.shape, *plan.shape, *bounds)
        state = (shapes + plan.source.affine.tobytes(), plan.stages, plan.keeps_dtype, plan.axes)
        plan.__dict__["_state"] = state
    return state


def _unpack(
    matrix: Any, buffer: bytes, stages: Any, keeps_dtype: bool, axes: str = ""
) -> SpatialPlan:
    numbers = struct.unpack("12q16d", buffer)
    source, shape, start, stop = (numbers[n : n + 3] for n in range(0, 12, 3))
    grid = Grid((source[0], source[1], source[2]), np.reshape(numbers[12:], (4, 4)))
    bounds = Region(start, stop)
    return SpatialPlan(grid, np.array(matrix), shape, bounds, stages, keeps_dtype, axes=axes)


def recorded_plan(record: Mapping[str, Any]) -> SpatialPlan:
    """Return the plan of a record by :func:`provenance`, also of one that was JSON meanwhile."""
    plan: Any = getattr(record, "_plan", None)
    if plan is None:
        return SpatialPlan.from_json(record["plan"])
    return plan if isinstance(plan, SpatialPlan) else _unpack(record["matrix"], *plan)


def provenance(patch: Any) -> dict[str, Any]:
    """Return where the voxels come from, as plain data.

    All entries are plain data:

    - ``file``: the volume's name.
    - ``stored_shape``: its (C, I, J, K).
    - ``region``: the voxels read, [start, stop] per axis.
    - ``matrix``: 4x4, from an index of the *patch* to the index of the *stored volume*, through all
      flushes: ``stored = matrix @ (i, j, k, 1)`` of voxel centres, without displacements.
    - ``affine``: 4x4, from an index of the patch to world millimetres.
    - ``plan``: the complete plan for ``SpatialPlan.from_json``. It maps a prediction back to the
      stored grid, in another process too.
    - ``level``: number of the coarser level that is read, if any; ``region`` refers to it.
    - ``options``: options of the format in ``open_volume()``, such as ``time``, if any.
    - ``channels``: one record per stacked file; the other entries are of the first file.
    - ``channel_names``: the names of the patch's channels, if any.
    """
    plan = patch.whole_plan
    is_virtual = isinstance(patch.volume, VirtualVolume)
    volume = patch.volume.stored_volume if is_virtual else patch.volume
    # As plain floats: a 4x4 array would be made for each patch. Adding zero turns -0.0 into 0.0.
    rows = [*map((0.0).__add__, plan.rows)]
    matrix = [rows[:4], rows[4:8], rows[8:], [0.0, 0.0, 0.0, 1.0]]
    if before := getattr(volume, "patch", None):
        record = Provenance(dict.items(provenance(before)))  # keeps lazy entries lazy
        changes: dict[str, Any] = {"matrix": matrix}
        if dict.__contains__(record, "channels"):
            changes["channels"] = [provenance(one) for one in _apart(patch)]
        dict.pop(record, "channel_names", None)
        if names := channel_names(patch):
            changes["channel_names"] = [*names]
        dict.update(record, changes)
        record._plan = plan
        return record
    reads = patch.reads(through=True)
    level = reads[0].level
    region: Any = zip(reads[0].region.start, reads[0].region.stop, strict=True)
    channels = [provenance(one) for one in _apart(patch)] if len(reads) > 1 else []
    if channels:  # the first realized channel has the source
        first: dict[str, Any] = channels[0]
        region, level = dict.get(first, "region", region), dict.get(first, "level", 0)
    entries = {
        "file": patch.volume.name,
        "stored_shape": [
            sum([r.stored_channels or r.volume.shape[0] for r in reads]),
            *plan.source.shape,
        ],
        "region": [*map(list, region)],
        "matrix": matrix,
        **({"level": level} if level else {}),
        **({"channels": channels} if channels else {}),
    }
    # Without a function: most volumes have no options, and no names of channels.
    source = getattr(patch.volume, "_source", None)
    place = getattr(source, "located_source", source)
    if options := getattr(getattr(place, "options", None), "reader_kwargs", None):
        plain = (bool, int, float, str)
        entries["options"] = {k: v for k, v in options.items() if isinstance(v, plain)}
    header = getattr(volume, "_header", None)
    has_names = patch.members or getattr(header, "channel_names", ())
    if names := channel_names(patch) if has_names else ():
        entries["channel_names"] = [*names]
    record = Provenance(entries)
    record._plan = plan
    return record


def _apart(patch: Any) -> list[Any]:
    """Return a patch on the same grid for each file whose channels are stacked."""
    if patch.members:
        values = patch.values  # they read a halo, too
        members = [replace(one, values=(*one.values, *values)) for one in patch.members]
        return [one for member in members for one in _apart(member)]
    if len(patch.parts) > 1:
        return [one for part in patch.parts for one in _apart(part)]
    before = getattr(patch.volume, "patch", None)
    below = [] if before is None else _apart(before)
    if len(below) < 2:
        return [patch]
    return [patch.with_volume(patch.volume.of_other(one)) for one in below]
