"""Spatial pipes: the chained forms of the spatial ops, which add them to every sample's plan."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from ..core import CallSite, Sample
from ..core.call_site import warn
from ..core.errors import ExtraInterpolation, SampleError, missing_key_hint
from ..core.sample import META
from ..core.validate import as_keys, entries_of
from ..graph import Pipe, parents_of
from ..spatial import (
    OPS,
    AnsweredOp,
    Augment,
    LazyPatch,
    NeedingOp,
    ResampleTo,
    SpatialOp,
    Step,
    ToAxes,
    TransformChain,
    join_steps,
    stored_labels,
)
from ..spatial.lazy.lazy_patch import patches_of
from ..spatial.lazy.patch_report import sources_of
from ..spatial.ops.op import NEUTRAL, NEUTRAL_OF_RANGES, is_hard, refuse_third_axis
from ..volumes import Volume
from ..volumes.stack_source import warn_of_axes
from .cache import Flush
from .datapipe import DataPipe, PerItem, lazy_patches, locate_errors, wrong_item
from .op_pipe import (
    EVERY_INTENSITY,
    SAMPLING_ARGUMENTS,
    OpPipe,
    Sampling,
    add_forms,
    bind_arguments,
    conflicts,
    decide_laziness,
    of_one_plan,
    refuse_conflict,
)


def apply_sampling_arguments(pipe: Any, arguments: Mapping[str, Any]) -> None:
    """Set the sampling and laziness of a pipe; put a flush before the pipe where one is due."""
    with locate_errors(pipe):
        pipe.sampling = Sampling.of(arguments, pipe.origin)
        pipe.lazy, on_conflict = decide_laziness(arguments)
        if needs_flush_before(pipe):
            pipe.parent = flush_before(pipe, pipe.parent, "lazy=False")
        clashes = [*conflicts(pipe.sampling, pipe.parent)]
        if clashes and on_conflict != "flush":
            refuse_conflict(clashes[0][1], pipe.origin)
        elif clashes:
            keys = sorted({key for key, _ in clashes})
            separate = None if EVERY_INTENSITY in keys else keys
            pipe.parent = flush_before(pipe, pipe.parent, "on_conflict='flush'", separate)
            text = f"{clashes[0][1]}: flush() separates the two, and voxels are interpolated twice"
            warn(f"{text}\n  at {pipe.origin}", ExtraInterpolation, pipe.origin)


def needs_flush_before(pipe: Pipe, default: bool = True) -> bool:
    """Whether a flush is due before a spatial pipe: it, or one with the same plan, is not lazy.

    ``default`` holds for pipes on which neither the user nor a block has decided.
    """
    upstream = {id(one): one for each in parents_of(pipe) for one, *_ in of_one_plan(each)}
    pending = [one for one in upstream.values() if is_spatial(one)]
    flags = [vars(one).get("lazy") for one in (pipe, *pending)]
    return bool(pending) and not all(default if flag is None else flag for flag in flags)


def is_spatial(pipe: Pipe) -> bool:
    """Whether a pipe adds ops to the plan of samples, and is no ``lazy_patch``."""
    steps = vars(pipe).get("steps")
    return isinstance(pipe, SpatialPipe) or (isinstance(steps, PipeSteps) and bool(steps))


def flush_before(pipe: Any, parent: Pipe, why: str, keys: Sequence[str] | None = None) -> Flush:
    """Return a flush between a pipe and its parent; reports give ``why`` as its cause."""
    flush = Flush(parent) if keys is None else Flush(parent, keys)
    flush.why, flush.origin = why, replace(pipe.origin, call=f"flush({keys or ''})")
    return flush


class SpatialPipe(OpPipe):
    """A pipe that adds one op to the plan of each sample; a loader merges several."""

    keywords: ClassVar[Mapping[str, Any]] = {
        "name": "",
        **dict.fromkeys((*SAMPLING_ARGUMENTS, "lazy", "on_conflict")),
    }
    orders_axes = False  # whether it has the op of ``to_axes()``
    sampling: Sampling = Sampling()
    lazy: bool | None = None
    is_step = True  # whether it adds steps and does nothing else: several are as good as one
    treats_alike = property(lambda self: self.is_step)
    stands_apart = "gives volumes plans of their own"  # why it is none, after its name

    def complete(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments for three axes; values for two put ``to_axes()`` before the pipe."""
        name = self.form_name
        with locate_errors(self):
            whole = fill_plane(arguments, NEUTRAL.get(name, {}), NEUTRAL_OF_RANGES.get(name, {}))
        if whole:
            self.parent = in_plane(self.parent, self.origin)
        elif name in _ANGLES and is_in_plane(self.parent):
            one = entries_of(arguments.get(_ANGLES[name]))  # a list of the one angle
            whole = {_ANGLES[name]: one[0]} if len(one) == 1 else {}
        elif name == "flip" and len(entries_of(arguments.get("p"))) == 2:
            whole = {} if "axes" in arguments else {"axes": (0, 1)}
        return {**arguments, **whole}

    def hold(self, op: SpatialOp, arguments: Mapping[str, Any], *, is_shared: bool) -> None:
        apply_sampling_arguments(self, arguments)
        if is_in_plane(self.parent):
            with locate_errors(self):
                refuse_third_axis(op)
        self.steps = PipeSteps([Step(op, self.stream_names[0], self.origin, common=is_shared)])

    def apply(self, item: Any) -> Sample:
        return add_steps(self, self.steps, item, None, self.sampling)


class PipeSteps(tuple[Step, ...]):
    """The steps of a pipe, and the extended steps of the last sample, for all its volumes."""

    last: tuple[tuple[Step, ...], int, tuple[Step, ...]] | None = None
    """Those that were there before, the length of the identity, and all."""

    def follow(
        self,
        pending: TransformChain,
        identity: tuple[int, ...],
        place: tuple[int, ...] | None = None,
    ) -> TransformChain:
        """Return the plan of an item by the steps of ``pending`` and then these."""
        last = self.last  # read once: another thread may iterate the same pipe
        if last is None or last[0] is not pending.steps or last[1] != len(identity):
            after = join_steps(pending.steps, self, len(identity))
            last = self.last = (pending.steps, len(identity), after)
        place = pending.place if place is None else place
        run = pending.references, pending.seed, pending.epoch
        return TransformChain(*run, identity, last[2], pending.moving, place)


def add_steps(
    pipe: DataPipe,
    steps: PipeSteps,
    sample: Any,
    ordinal: int | None = None,
    sampling: Sampling | None = None,
    place: tuple[int, ...] | None = None,
) -> Sample:
    """Return ``sample``, or its ``ordinal``-th child, with steps on the plan of its patches."""
    if not isinstance(sample, Sample):
        raise _no_lazy_volume(pipe, sample)
    identity = sample.identity if ordinal is None else (*sample.identity, ordinal)
    # ``place`` is that of a ``PlacedPatch``. Nearly always all patches share one plan, and their
    # value ops commute. A planner calls this for each patch and pipe, so this case is written out.
    lazy: dict[str, LazyPatch] = {}
    common: TransformChain | None = None
    for key, thing in sample.items():
        if not isinstance(thing, LazyPatch):
            continue
        pending = thing.pending
        apart = pending.moving is not None or (common is not None and pending is not common)
        if apart or thing.members or (thing.values and not thing.commutes):
            before = {key: thing for key, thing in sample.items() if isinstance(thing, LazyPatch)}
            lazy = add_to_each(steps, before, identity, sampling, place)
            break
        if common is None:
            common, after = pending, steps.follow(pending, identity, place)
        lazy[key] = thing.with_pending(after)
    if not lazy:
        raise _no_lazy_volume(pipe, sample)
    result: Sample = sample.with_identity(lazy, identity)
    return result if sampling is None or not sampling.changes else sampling.of_sample(result)


def add_to_each(
    steps: PipeSteps,
    patches: Mapping[str, LazyPatch],
    identity: tuple[int, ...],
    sampling: Sampling | None = None,
    place: tuple[int, ...] | None = None,
) -> dict[str, LazyPatch]:
    """Return patches with steps on their plans: of members, after a flush, on another grid."""
    # Volumes share a plan, but for those that a flush has given one of their own.
    plans: dict[TransformChain, TransformChain] = {}

    def following(patch: LazyPatch) -> LazyPatch:
        if patch.values and not patch.commutes:
            patch = patch.flush_plan(soft=True)
        pending = patch.pending
        if pending.moving is not None:
            padding = patch.policy.padding if sampling is None else sampling.padding(key, patch)
            return _add_on_other_grid(patch, padding, steps, identity)
        if (plan := plans.get(pending)) is None:
            plan = plans[pending] = steps.follow(pending, identity, place)
        return patch.with_pending(plan)

    results = {}
    for key, patch in patches.items():
        results[key] = patch.with_each(following) if patch.members else following(patch)
    return results


def _add_on_other_grid(
    patch: LazyPatch, padding: str, steps: Sequence[Step], identity: tuple[int, ...]
) -> LazyPatch:
    """Return a patch of a volume that came from another grid with more steps on its plan."""
    # A hard crop of whole voxels ends at voxels of the new grid, between the volume's own. Padding
    # that repeats or mirrors needs voxels of the new grid, so after such a crop the volume is
    # sampled anew from its values there. Fill needs none, and after an op that interpolates a hard
    # crop leaves fill on any grid.
    for step in steps:
        pending = patch.pending
        whole = takewhile(lambda one: one.op.lattice, pending.steps)
        cut = pending.moving is not None and any(is_hard(one.op) for one in whole)
        if cut and padding != "constant":
            patch = patch.flush_plan()
            pending = patch.pending
        after = join_steps(pending.steps, (step,), len(identity))
        patch = patch.with_pending(replace(pending, identity=identity, steps=after))
    return patch


def pending_of(pipe: DataPipe, sample: Any) -> TransformChain:
    """Return the plan that the lazy patches of ``sample`` share, under the sample's identity."""
    things = sample.values() if isinstance(sample, Sample) else ()
    lazy = [thing.pending for thing in things if isinstance(thing, LazyPatch)]
    if not lazy:
        raise _no_lazy_volume(pipe, sample)
    # Not that of a volume that comes from another grid, if there is one.
    pending = min(lazy, key=lambda one: one.moving is not None)
    return replace(pending, identity=sample.identity)


def _no_lazy_volume(pipe: DataPipe, sample: Any) -> SampleError:
    """Return the error of a sample without any lazy volume, or of another item."""
    if isinstance(sample, Sample) and sample.patches:
        do = "Move realize() after the spatial pipes: they act on plans, not on voxels."
        return wrong_item(pipe, sample, "a lazy volume", do)
    do = "Put open_volume() before it."
    if isinstance(sample, Mapping) and META in sample:
        do = f"Put {pipe.form_name}() before batch_patches(): it acts on one sample."
    return wrong_item(pipe, sample, "a sample with a lazy volume", do)


class DataDependentPipe(SpatialPipe):
    """A pipe whose op reads statistics of one volume of the sample when its plan is resolved."""

    is_step = False
    stands_apart = (
        "asks a volume of each sample, so it stays a pipe of its own; the plan is one all the "
        "same, and costs no interpolation more"
    )

    def apply(self, item: Any) -> Sample:
        """Return the sample with the step added to its plan; no voxel is read."""
        if not isinstance(item, Sample):
            raise wrong_item(self, item, "a sample with a lazy volume", "Put open_volume() before.")
        (step,) = self.steps
        op: Any = step.op
        key = op.needs.key
        stored_op = self._as_stored(op, item.get(key))
        asking = replace(step, op=AnsweredOp(stored_op, named_volume(key, item, "key")))
        return add_steps(self, PipeSteps([asking]), item, None, self.sampling)

    def _as_stored(self, op: Any, thing: Any) -> Any:
        # Raises where a threshold could be meant for values that a pipe has changed.
        if op.needs.above is None and op.needs.selection is None:
            labels = stored_labels(thing, op.needs.labels, op.name, op.needs.key)
            if labels == op.needs.labels:
                return op
            if not labels:
                msg = f"{op.name} asks for {op.needs.describe()}, which no label becomes"
                raise SampleError(msg, do="Name labels as remap_labels gives them.")
            return replace(op, classes=labels)
        every = sources_of(thing) if isinstance(thing, LazyPatch) else ()
        change = next((one.values[0].op.describe() for one in every if one.values), None)
        if change is not None:
            by = f"above={op.needs.above!r}" if op.needs.selection is None else "select_fn="
            msg = f"{op.name}({by}) looks at {op.needs.key!r} as it is "
            do = f"Put {op.name} first, with a threshold in stored values."
            raise SampleError(f"{msg}stored, and {change} comes before it", do=do)
        return op


def named_volume(key: str, sample: Sample, argument: str, kind: str = "label") -> Any:
    """Return the volume that an argument names: a lazy one, or one that is not opened yet."""
    thing = sample.get(key)
    if isinstance(thing, LazyPatch):
        return thing.volume
    if isinstance(thing, Volume):
        return thing
    if isinstance(thing, (str, os.PathLike)):
        return Volume(thing, kind=kind)
    have = ", ".join(map(repr, sample)) or "nothing"
    what = "which it does not have" if thing is None else f"which holds a {type(thing).__name__}"
    do = "Name one of them; write vp.Volume(array, affine=...) around an array."
    do = do if key in sample else missing_key_hint(key, do)
    if key in sample.patches:
        what = "which is realized already"
        do = "Move realize() after this pipe: it asks volumes, not voxels."
    msg = f"{argument}={key!r} names a volume of the sample, {what}; it has {have}"
    raise SampleError(msg, do=do)


class FusedSpatial(PerItem):
    """Add the steps of all members at once; each keeps its origin and the name of its stream."""

    steps: PipeSteps
    calls: tuple[str, ...]
    samplings: tuple[Sampling, ...]
    lazy: bool | None
    orders_axes: bool
    treats_alike = True

    def __init__(self, first: SpatialPipe | FusedSpatial, second: SpatialPipe) -> None:
        # Members travel without their parents: those are upstream of this pipe already.
        super().__init__(first.parent)
        if isinstance(first, FusedSpatial):
            calls, samplings = first.calls, first.samplings
        else:
            calls, samplings = (first.describe(),), (first.sampling,)
        self.steps = PipeSteps((*first.steps, *second.steps))
        self.orders_axes = first.orders_axes or second.orders_axes
        self.stream_names = (*first.stream_names, *second.stream_names)
        self.calls = (*calls, second.describe())
        self.samplings = (*samplings, second.sampling)
        self.lazy = first.lazy and second.lazy
        self.origin = second.origin

    def describe(self) -> str:
        return " + ".join(self.calls)

    def settings(self) -> Any:
        return self.calls

    def apply(self, item: Any) -> Sample:
        every = [one for patch in patches_of(item).values() for one in patch.members or (patch,)]
        # A later member may need the result of an earlier one for a volume from another grid.
        if any(one.pending.moving is not None for one in every):
            for step, sampling in zip(self.steps, self.samplings, strict=True):
                item = add_steps(self, PipeSteps((step,)), item, None, sampling)
            return item  # type: ignore[no-any-return]
        sample = add_steps(self, self.steps, item)
        for sampling in self.samplings:
            if sampling.changes:
                sample = sampling.of_sample(sample)
        return sample


# The chained forms: ``.rotate(15)`` adds ``Rotate(15)`` to every sample. Their common rules (units,
# ``space=``, ranges that are drawn, ``p=``, how volumes are sampled) are in docs/pipes.md.


class AugmentPipe(SpatialPipe, form="augment", op=Augment, keywords_only=True): ...


class ToAxesPipe(SpatialPipe, form="to_axes", op=ToAxes):
    """Put the axes in the order of their names, for all that follows.

    Later sizes, spacings, angles and other amounts per axis are in this order, as shapes and
    tensors are. Nothing is interpolated or copied. Every voxel stays in its place in the world.

    Raises
    ------
    BadHeader
        When patches are made: the file does not name its axes.
    PatchSizeError
        Two letters are given, and the volume has several voxels along the third axis.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> pipe = from_cases([{"image": np.zeros((20, 48, 64))}]).open_volume(axes="zyx")
    >>> next(iter(pipe.to_axes("zyx").lazy_patch((8, 16, 32))))["image"].shape
    (1, 8, 16, 32)
    """

    orders_axes = True


def is_in_plane(parent: Pipe) -> bool:
    """Whether 2-D data have two axes after a pipe, by the chain before it."""
    before = [parent]
    while len(before) == 1:
        if isinstance(before[0], ToAxesPipe):
            axes = getattr(before[0].steps[0].op, "axes", None)
            return axes is None or len(axes) == 2
        before = [*parents_of(before[0])]
    return False


def in_plane(parent: Pipe, origin: CallSite) -> Pipe:
    """Return a pipe after which 2-D data have two axes, for a size of two numbers."""
    if is_in_plane(parent):
        return parent
    pipe = ToAxesPipe(parent)
    pipe.origin = origin  # an error names the pipe with the two numbers
    return pipe


# Angles, of which 2-D data have one.
_ANGLES = {"augment": "rotate", "rotate": "degrees"}


def fill_plane(
    arguments: Mapping[str, Any],
    neutral: Mapping[str, Any],
    of_ranges: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Return the arguments that have one value for each axis of 2-D data, with a third value.

    Two numbers of an argument in ``of_ranges`` are a range.
    """
    whole, others = dict[str, Any](), []
    for name, last in {**neutral, **of_ranges}.items():
        each = entries_of(arguments.get(name))
        is_range = name in of_ranges and not any(v is None or entries_of(v) for v in each)
        if len(each) == 2 and not is_range:
            whole[name] = (*each, last(each) if callable(last) else last)
        elif len(each) == 3:
            others.append(name)
    if whole and others:
        msg = f"{next(iter(whole))}= has two values, and {others[0]}= three"
        raise SampleError(msg, do="Give one value, or one for each axis of the data.")
    return whole


class ResampleToPipe(SpatialPipe, form="resample_to", op=ResampleTo):
    """Resample volumes to one grid: each voxel then has the value at its place in the world.

    It is part of the one interpolation that the plan of each volume is.

    Parameters
    ----------
    grid
        A ``Grid(shape, affine)``, for all volumes alike, anywhere among the spatial pipes. Or the
        key of a volume, whose grid the others get. Then it comes right after ``open_volume``:
        volumes on different grids have no spatial op in common before.
    keys
        With a key: the volumes to resample, by default all others. Volumes that are not named must
        have its grid.

    Raises
    ------
    SampleError
        A sample has no volume of that key, or a spatial pipe came before.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> case = {"ct": np.zeros((8, 8, 8)), "pet": np.zeros((4, 4, 4))}
    >>> pipe = from_cases([case]).open_volume().resample_to("ct").lazy_patch(4)
    >>> [patch.shape for patch in next(iter(pipe)).values()]
    [(1, 4, 4, 4), (1, 4, 4, 4)]
    """

    keywords: ClassVar[Mapping[str, Any]] = {"keys": None, **SpatialPipe.keywords}

    def __init__(self, parent: Pipe, *args: Any, **kwargs: Any) -> None:
        arguments = bind_arguments(self.form_name, self.__signature__, args, kwargs)
        grid, keys = arguments["grid"], arguments.get("keys")
        self.like = grid if isinstance(grid, str) else None
        self.keys = None if keys is None else as_keys("resample_to(keys=)", keys)
        if self.like is None:
            if keys is not None:
                raise TypeError("keys= belongs to resample_to(key); a grid is for all volumes")
            super().__init__(parent, **arguments)
            return
        PerItem.__init__(self, parent)
        self.stream_names: tuple[str, ...] = ()
        self.is_step = False
        apply_sampling_arguments(self, arguments)

    def apply(self, item: Any) -> Sample:
        return super().apply(item) if self.like is None else self._bring(item, self.like)

    def _bring(self, item: Sample, like: str) -> Sample:
        lazy = lazy_patches(self, item, (like, *(self.keys or ())))
        if any(patch.pending.steps for patch in lazy.values()):
            do = "Put it right after open_volume(), where each volume still has its own grid."
            msg = f"resample_to({like!r}) comes after a spatial pipe"
            raise SampleError(msg, do=do).at(self.origin, item.case)
        self.sampling.refuse_unknown(lazy, item.case)
        targets = set(lazy if self.keys is None else self.keys) - {like}
        start: dict[str, LazyPatch] = {}

        def begin(patch: LazyPatch) -> LazyPatch:
            # With a volume that is on its target grid already, or may be resampled to it.
            begins = patch.commutes and not patch.members
            stands = key in targets or patch.pending.moving is None
            return patch if begins and stands else patch.flush_plan()

        for key, patch in lazy.items():
            start[key] = patch.with_each(begin)
        firsts = {key: patch.leaves[0] for key, patch in start.items()}
        grids = {key: first.volume.grid for key, first in firsts.items()}
        for key in sorted(targets):
            own = TransformChain({like: firsts[like].volume})
            own.refuse_unplaced(firsts[key].volume, key=key)
        same = [key for key, grid in grids.items() if not grid.difference(grids[like])]
        warn_of_axes({key: firsts[key].volume for key in same})
        references = {key: firsts[key].volume for key in lazy if key not in targets}
        chain = replace(firsts[like].pending, references={like: firsts[like].volume, **references})

        def move(patch: LazyPatch) -> LazyPatch:
            # The ops get the grids of the references, and the same draws as for these.
            own = replace(chain, moving=patch.volume) if key in targets else chain
            return patch.with_pending(own)

        for key, patch in start.items():
            start[key] = self.sampling.apply(key, patch).with_each(move)
        return item.with_data(**start)


if not TYPE_CHECKING:  # the forms: ``iter`` takes them all
    for base, needs in ((SpatialPipe, False), (DataDependentPipe, True)):
        add_forms(globals(), [op for op in OPS if issubclass(op, NeedingOp) == needs], base)
    __all__ = [name for name in globals() if name.endswith("Pipe") and name != "OpPipe"]
    __all__ = sorted({*__all__, "FusedSpatial"} - {"DataDependentPipe", "DataPipe"})
