"""What a patch says of itself, with what was done before its voxels were sampled anew."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...core import Grid, Region
from ..plans.plan import SpatialPlan
from ..volume_like import made_like, patch_before, stored_of, stored_type

if TYPE_CHECKING:
    from .lazy_patch import LazyPatch


class Provenance(dict[str, Any]):
    """Where the voxels of a patch come from: plain data, and two entries that are made when asked.

    ``plan`` (for ``SpatialPlan.from_json``) and ``affine`` are written out at the first look at
    them, or at all of it: ``json.dumps``, ``==`` and ``dict()`` see a dictionary like any other.
    So they are before anything is changed: what is set stays.
    A batch on its way from a worker carries some 300 bytes for the two, and no text.
    """

    __slots__ = ("_plan",)

    def __init__(self, entries: Any = (), plan: Any = None, /) -> None:
        super().__init__(entries)
        self._plan = plan

    def __missing__(self, key: str) -> Any:
        self._write_out()
        if dict.__contains__(self, key):
            return dict.__getitem__(self, key)
        raise KeyError(key)

    def _write_out(self) -> None:
        if self._plan is None:
            return
        plan, self._plan = self._plan, None
        if not isinstance(plan, SpatialPlan):
            plan = _unpacked(dict.__getitem__(self, "matrix"), *plan)
        dict.update(self, affine=plan.affine.tolist(), plan=plan.to_json())

    def __reduce__(self) -> tuple[Any, ...]:
        plan = _packed(self._plan) if isinstance(self._plan, SpatialPlan) else self._plan
        return Provenance, (dict(dict.items(self)), plan)  # copying it would write it out


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


def _packed(plan: SpatialPlan) -> tuple[Any, ...]:
    """Return what a plan is besides its matrix, which the entry has, in few bytes.

    Pickled as it is, a plan takes ten times as long. One object for all volumes of a sample: it is
    pickled once.
    """
    packed: tuple[Any, ...] | None = plan.__dict__.get("_packed")
    if packed is None:
        bounds = (*plan.bounds.start, *plan.bounds.stop)
        shapes = struct.pack("12q", *plan.source.shape, *plan.shape, *bounds)
        packed = (shapes + plan.source.affine.tobytes(), plan.stages, plan.keeps_dtype)
        plan.__dict__["_packed"] = packed
    return packed


def _unpacked(matrix: Any, packed: bytes, stages: Any, keeps_dtype: bool) -> SpatialPlan:
    numbers = struct.unpack("12q16d", packed)
    source, shape, start, stop = (numbers[n : n + 3] for n in range(0, 12, 3))
    grid = Grid((source[0], source[1], source[2]), np.reshape(numbers[12:], (4, 4)))
    return SpatialPlan(grid, np.array(matrix), shape, Region(start, stop), stages, keeps_dtype)


def provenance_of(patch: LazyPatch) -> Provenance:
    """Return where the voxels of a patch come from."""
    from .made_volume import stored_reads

    plan = patch.whole_plan
    if before := getattr(stored_of(patch.volume), "realized_from", None):
        entries = dict(dict.items(provenance_of(before)))  # without what is written out
        entries["matrix"] = plan.matrix.tolist()
        if "channels" in entries:
            entries["channels"] = [provenance_of(one) for one in _apart(patch)]
        return Provenance(entries, plan)
    reads = stored_reads(patch, through=True)
    region: Any = reads[0].region
    level: Any = reads[0].level
    channels = [provenance_of(one) for one in _apart(patch)] if len(reads) > 1 else []
    if channels:  # of voxels that were realized the first tells where they come from
        first: dict[str, Any] = channels[0]
        region, level = dict.get(first, "region", region), dict.get(first, "level", 0)
    entries = {
        "file": patch.volume.name,
        "stored_shape": [sum(read.volume.shape[0] for read in reads), *plan.source.shape],
        "region": [list(pair) for pair in region],
        "matrix": plan.matrix.tolist(),
        **({"level": level} if level else {}),
        **({"channels": channels} if channels else {}),
    }
    return Provenance(entries, plan)


def _apart(patch: LazyPatch) -> list[LazyPatch]:
    """Return a patch of each file whose channels are in one, on the same grid as that."""
    if patch.members:
        values = patch.values  # they look around, too
        found = [replace(one, values=(*one.values, *values)) for one in patch.members]
        return [one for member in found for one in _apart(member)]
    if len(patch.parts) > 1:
        return [one for part in patch.parts for one in _apart(part)]
    volume: Any = patch.volume
    before = patch_before(volume)
    below = [] if before is None else _apart(before)
    if len(below) < 2:
        return [patch]
    return [patch.with_volume(volume.of_other(one)) for one in below]


def described(patch: LazyPatch) -> str:
    """Return the volume and all steps, those before a flush too."""
    steps = "".join(f" · {step.describe()}" for step in patch.values)
    if patch.members:
        return f"{' + '.join(f'({described(one)})' for one in patch.members)}{steps}"
    earlier = patch_before(patch.volume)
    before = f"{patch.volume.name}:"
    if earlier is not None:
        how = "realized, opened again" if made_like(patch.volume) is None else "sampled anew"
        before = f"{described(earlier)}; {how}:"
    return f"{before} {patch.pending.describe()}{steps}"


def explained(patch: LazyPatch) -> str:
    """Return the class of the work and the bytes that are read; a line for each file."""
    several = patch.members or patch.parts
    if len(several) > 1:
        return "; ".join(explained(one) for one in several)
    read = patch.reads_from()
    told = read.plan.explain(patch.policy, stored_type(read.volume), read.volume.shape[0])
    made = made_like(patch.volume)
    below = "" if made is None else f"; of voxels that were made by: {made.patch.explain()}"
    return str(told) + (f", from level {read.level}" if read.level else "") + below
