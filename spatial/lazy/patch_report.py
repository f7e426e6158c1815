"""Reports on a patch, in words and as plain data: provenance, explanations, refusals."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from ...core import Grid, Region
from ...core.errors import SampleError
from ..ops.op import is_hard
from ..plans.plan import SpatialPlan
from .virtual_volume import VirtualVolume


def _refusing(sign: str) -> Callable[..., NoReturn]:
    def refuse(self: Any, *_: Any) -> NoReturn:
        raise _refusal(self, sign)

    return refuse


def _refusal(patch: Any, sign: str) -> SampleError:
    return SampleError(
        f"{sign} needs voxels, and those of {patch!r} are not read yet",
        do="Put .realize() before: .realize().map(f).batch_patches(4); or compute on the batch, "
        "with .map(f) after batch_patches.",
    )


class NoArithmetic:
    """Makes every operator and NumPy function of elements a SampleError, which is a TypeError."""

    # NumPy would read the voxels for ``1 + patch``, and raise without a cure for ``patch + 1``.

    __slots__ = ()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> NoReturn:
        """Refuse NumPy's element-wise functions, and operators with an array on the left."""
        raise _refusal(self, f"numpy.{ufunc.__name__}")

    __add__ = __radd__ = _refusing("+")
    __sub__ = __rsub__ = _refusing("-")
    __mul__ = __rmul__ = _refusing("*")
    __truediv__ = __rtruediv__ = _refusing("/")
    __floordiv__ = __rfloordiv__ = _refusing("//")
    __mod__ = __rmod__ = _refusing("%")
    __pow__ = __rpow__ = _refusing("**")
    __neg__ = _refusing("-")
    __abs__ = _refusing("abs()")
    __lt__ = _refusing("<")
    __le__ = _refusing("<=")
    __gt__ = _refusing(">")
    __ge__ = _refusing(">=")


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
        state = (shapes + plan.source.affine.tobytes(), plan.stages, plan.keeps_dtype)
        plan.__dict__["_state"] = state
    return state


def _unpack(matrix: Any, buffer: bytes, stages: Any, keeps_dtype: bool) -> SpatialPlan:
    numbers = struct.unpack("12q16d", buffer)
    source, shape, start, stop = (numbers[n : n + 3] for n in range(0, 12, 3))
    grid = Grid((source[0], source[1], source[2]), np.reshape(numbers[12:], (4, 4)))
    return SpatialPlan(grid, np.array(matrix), shape, Region(start, stop), stages, keeps_dtype)


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
    - ``channels``: one record per stacked file; the other entries are of the first file.
    """
    plan = patch.whole_plan
    is_virtual = isinstance(patch.volume, VirtualVolume)
    volume = patch.volume.stored_volume if is_virtual else patch.volume
    # As plain floats: a 4x4 array would be made for each patch. Adding zero turns -0.0 into 0.0.
    rows = [number + 0.0 for number in plan.rows]
    matrix = [rows[:4], rows[4:8], rows[8:], [0.0, 0.0, 0.0, 1.0]]
    if before := getattr(volume, "patch", None):
        record = Provenance(dict.items(provenance(before)))  # keeps lazy entries lazy
        changes: dict[str, Any] = {"matrix": matrix}
        if dict.__contains__(record, "channels"):
            changes["channels"] = [provenance(one) for one in _apart(patch)]
        dict.update(record, changes)
        record._plan = plan
        return record
    reads = patch.reads(through=True)
    region, level = reads[0].region, reads[0].level
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


def describe_patch(patch: Any) -> str:
    """Return the volume and all steps, including those before a flush."""
    steps = "".join(f" · {step.describe()}" for step in patch.values)
    if patch.members:
        return f"{' + '.join(f'({describe_patch(one)})' for one in patch.members)}{steps}"
    earlier = getattr(patch.volume, "patch", None)
    before = f"{patch.volume.name}:"
    if earlier is not None:
        is_made = isinstance(patch.volume, VirtualVolume)
        how = "sampled anew" if is_made else "realized, opened again"
        before = f"{describe_patch(earlier)}; {how}:"
    return f"{before} {patch.pending.describe()}{steps}"


def explain(patch: Any) -> str:
    """Return one line for each file: the class of the work, the bytes read; reads headers."""
    several = patch.members or patch.parts
    if len(several) > 1:
        return "; ".join(explain(one) for one in several)
    read = patch.read_plan
    text = str(read.plan.explain(patch.policy, read.stored_type, read.volume.shape[0]))
    if read.level:
        text += f", from level {read.level}"
    if isinstance(patch.volume, VirtualVolume):
        text += f"; of voxels that were made by: {patch.volume.patch.explain()}"
    return text


def interpolations(patch: Any) -> tuple[int, int]:
    """Return how often the voxels of a patch are interpolated, and how often only copied."""
    # A kept volume was made once, for all patches; :func:`describe_kept` reports it.
    if len(patch.parts) > 1 or patch.members:
        resamples, copy_count = map(sum, zip(*map(interpolations, patch.parts), strict=True))
        return resamples, copy_count
    is_copy = int(patch.plan.is_copy)
    if not isinstance(patch.volume, VirtualVolume) or patch.volume.is_kept:
        return 1 - is_copy, is_copy
    more, copies = interpolations(patch.volume.patch)
    return more + 1 - is_copy, copies + is_copy


def describe_kept(patch: Any) -> str:
    """Return a text about volumes that are made once and kept; empty if there are none."""
    if patch.members:
        return "; ".join(dict.fromkeys(filter(None, map(describe_kept, patch.members))))
    volume = patch.volume
    if not isinstance(volume, VirtualVolume):
        return ""
    if not volume.is_kept:
        return describe_kept(volume.patch)
    more, copies = interpolations(volume.patch)
    return (
        f"{volume.because}: {more} interpolations and {copies} copies for each volume, "
        "beside those of each patch"
    )


def breaks(patch: Any) -> tuple[str, ...]:
    """Return the causes that break the fusion of a patch, in order, with their lines."""
    if patch.members:
        return tuple(dict.fromkeys(what for member in patch.members for what in breaks(member)))
    if not isinstance(patch.volume, VirtualVolume) or patch.volume.is_kept:
        return ()
    before = patch.volume.patch
    by = [step for step in before.values if not step.op.commutes]
    texts = [f"{step.op.waited_for}{f' at {step.origin}' if step.origin else ''}" for step in by]
    because = dict.fromkeys(step.op.late_because for step in by if step.op.late_because)
    why = f" ({'; '.join(because)})" if because else ""
    by_flush = patch.volume.because or "flush"
    return (*breaks(before), (" and ".join(texts) or _cut(before) or by_flush) + why)


def asks_voxels(patch: Any) -> bool:
    """Whether the position or size of a patch depends on voxels."""
    steps = [step for step in patch.pending.steps if step.record is None]
    inside = (op for step in steps for chain in getattr(step.op, "members", ()) for _, op in chain)
    ops = [*(step.op for step in steps), *inside]
    before = (patch.volume.patch,) if isinstance(patch.volume, VirtualVolume) else ()
    asks = any(getattr(op, "looks_at_stored", False) for op in ops)
    return asks or any(map(asks_voxels, patch.members or before))


def _cut(patch: Any) -> str:
    """Return the hard crop after which a volume on another grid begins anew; empty if none."""
    steps = patch.pending.steps if patch.pending.moving is not None else ()
    last = next((step for step in reversed(steps) if is_hard(step.op)), None)
    if last is None:
        return ""
    place = f" at {last.origin}" if last.origin else ""
    return f"{last.op.name}{place} (a hard crop of a volume that was brought to another grid)"


def numpy_steps(patch: Any) -> tuple[tuple[str, ...], ...]:
    """Return the steps with displacements and hard crops, for each plan that NumPy computes."""
    # Includes the plans of virtual volumes, in order; empty where the kernel does all.
    if patch.members:
        return tuple(steps for member in patch.members for steps in numpy_steps(member))
    below: tuple[tuple[str, ...], ...] = ()
    if isinstance(patch.volume, VirtualVolume):
        below = numpy_steps(patch.volume.patch)
    if patch.plan.kernel_stages.is_for_kernel:
        return below
    pending, names = patch.pending, []
    plan = pending.first_plan
    for step in pending.steps:
        before, plan = plan, step.apply(plan, pending.draws[step.stream_name])
        if len(plan.stages) > len(before.stages):  # not expressible as a matrix
            names.append(f"{step.stream_name}{f' at {step.origin}' if step.origin else ''}")
    return (*below, tuple(names))
