"""Reports on a patch in words: explanations, refusals."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

from ...core.errors import SampleError
from ..ops.op import is_hard
from .virtual_volume import VirtualVolume

_LOG = logging.getLogger("voxpipe.fusion")


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


def logs_fusion() -> bool:
    """Whether the logger ``voxpipe.fusion`` records fused pipes: at level DEBUG."""
    return _LOG.isEnabledFor(logging.DEBUG)


def log_fusion(items: Iterable[Any]) -> None:
    """Log the fused pipes of each resample of each lazy volume, and the cause of its end."""
    for item in items:
        things = {**item, **getattr(item, "patches", {})} if isinstance(item, Mapping) else {}
        for key, thing in things.items():
            for text in _fusions(thing, "the batch") if hasattr(thing, "pending") else ():
                _LOG.debug("%s, %s: %s", getattr(item, "case", ""), key, text)


def _fusions(patch: Any, why: str) -> tuple[str, ...]:
    if patch.members:
        return tuple(dict.fromkeys(text for one in patch.members for text in _fusions(one, why)))
    is_made = isinstance(patch.volume, VirtualVolume) and not patch.volume.is_kept
    below = _fusions(patch.volume.patch, breaks(patch)[-1]) if is_made else ()
    names = " + ".join(step.describe() for step in patch.pending.steps) or "none"
    return (*below, f"{len(patch.pending.steps)} pending, {names}; applied at once for {why}")


def sources_of(patch: Any) -> Iterator[Any]:
    """Yield a patch, its members, and the patches that virtual volumes are made of."""
    yield patch
    before = (patch.volume.patch,) if isinstance(patch.volume, VirtualVolume) else ()
    for one in patch.members or before:
        yield from sources_of(one)


def asks_voxels(patch: Any) -> bool:
    """Whether the position or size of a patch depends on voxels."""
    every = (step for one in sources_of(patch) for step in one.pending.steps)
    steps = [step for step in every if step.record is None]
    inside = (op for step in steps for chain in getattr(step.op, "members", ()) for _, op in chain)
    ops = [*(step.op for step in steps), *inside]
    return any(getattr(op, "looks_at_stored", False) for op in ops)


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
