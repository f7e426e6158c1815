"""The spatial pipes: each adds one op to the plan of a sample. No voxel moves.

All of them act on every volume of a sample alike, in world millimetres about the
centre of the current grid unless ``space="voxel"``. Angles are in degrees. A number is
a fixed value, ``(lo, hi)`` is drawn uniformly per sample, three entries are per axis,
and ``p`` is the probability that the pipe acts at all. ``mode``, ``padding`` and ``fill``
change how intensities are sampled, or any volume by key: ``padding={"label": "border"}``.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Sequence
from typing import Any

from ...core import Sample
from ...core.errors import VoxpipeError
from ...graph import Pipe
from ...spatial import (
    Affine,
    Amount,
    Augment,
    CenterCrop,
    Crop,
    CropOrPad,
    Flip,
    LazyPatch,
    Pad,
    PendingPlan,
    Rotate,
    Rotate90,
    Shear,
    Space,
    SpatialOp,
    Step,
    Translate,
    Zoom,
    joined,
)
from ..datapipe import DataPipe, PerItem, chained, stream_name, wrong_item
from .sampling import SAMPLING_ARGUMENTS, Sampling, refuse_conflict
from .sizes import Size, three


class SpatialPipe(PerItem):
    """A pipe that adds steps to the plan of each sample.

    Subclasses make one op of their arguments; ``FuseSpatial`` makes one pipe of several.
    """

    sampling: Sampling = Sampling()

    def __init__(self, parent: Pipe, make_op: Any, *, name: str = "", **sampling: Any) -> None:
        super().__init__(parent)
        self._refuse_unknown(sampling)
        try:
            op: SpatialOp = make_op()
            self.sampling = Sampling.of(**sampling).at(self.origin)
            refuse_conflict(self.sampling, self.origin, parent)
        except VoxpipeError as error:
            raise error.at(self.origin)  # noqa: B904
        self.stream_names = (stream_name(parent, name or type(self).chained),)
        self.steps = (Step(op, self.stream_names[0], self.origin),)
        self.adding = Adding(self.steps)

    def _refuse_unknown(self, sampling: dict[str, Any]) -> None:
        """Raise TypeError for an argument that no pipe of this kind has."""
        own = [name for name in inspect.signature(type(self)).parameters if name != "parent"]
        known = [*(name for name in own if name != "sampling"), *SAMPLING_ARGUMENTS]
        for name in sampling:
            if name not in SAMPLING_ARGUMENTS:
                near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
                meant = f"; did you mean {near[0]!r}?" if near else f"; it has {', '.join(known)}"
                msg = f"{type(self).chained}() has no argument {name!r}{meant}"
                raise TypeError(msg)

    def apply(self, item: Any) -> Sample:
        """Return the sample with the steps added to its plan."""
        return stepped(self, item, self.adding, self.sampling)


class Adding:
    """Adds the same steps to the plan of every sample of a pipe.

    All samples of a chain carry the same steps up to here, one object; so the joined ones are
    made, and checked for streams of one name, once and not per sample.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self.steps = tuple(steps)
        self._last: tuple[tuple[Step, ...], int, tuple[Step, ...]] | None = None

    def to(self, before: tuple[Step, ...], depth: int) -> tuple[Step, ...]:
        """Return ``before`` with the steps, for an identity of ``depth`` entries."""
        # Read once: another thread may iterate the same pipe.
        last = self._last
        if last is not None and last[0] is before and last[1] == depth:
            return last[2]
        after = joined(before, self.steps, depth)
        self._last = (before, depth, after)
        return after

    def __reduce__(self) -> tuple[Any, ...]:
        return (Adding, (self.steps,))


def stepped(
    pipe: DataPipe,
    sample: Any,
    adding: Adding,
    sampling: Sampling | None = None,
    *,
    ordinal: int | None = None,
) -> Sample:
    """Return ``sample``, or its ``ordinal``-th child, with steps on the plan of its patches."""
    pending = _pending(pipe, sample)
    identity = sample.identity if ordinal is None else (*sample.identity, ordinal)
    after = pending.following(identity, adding.to(pending.steps, len(identity)))
    lazy = {
        key: thing.with_pending(after)
        for key, thing in sample.items()
        if isinstance(thing, LazyPatch)
    }
    if sampling is not None and sampling.changes:
        sampling.refuse_unknown(lazy, sample.case)
        for key, thing in lazy.items():
            lazy[key] = thing.with_pending(after, sampling.applied(key, thing))
    moved: Sample = sample.moved(lazy, identity)
    return moved


def pending_of(pipe: DataPipe, sample: Any) -> PendingPlan:
    """Return the plan that the lazy patches of ``sample`` share, under the sample's identity."""
    pending = _pending(pipe, sample)
    return pending.following(sample.identity, pending.steps)


def _pending(pipe: DataPipe, sample: Any) -> PendingPlan:
    if isinstance(sample, Sample):
        for thing in sample.values():
            if isinstance(thing, LazyPatch):
                return thing.pending
        if sample.patches:
            do = "Move realize() after the spatial pipes: they act on plans, not on voxels."
            raise wrong_item(pipe, sample, "a lazy volume", do)
    raise wrong_item(pipe, sample, "a sample with a lazy volume", "Put open_volume() before it.")


@chained("crop")
class CropPipe(SpatialPipe):
    """Keep the box of ``size`` voxels that begins at ``start``.

    ``hard=True`` cuts for good: what is rotated in later is fill, not the volume around.
    """

    def __init__(
        self,
        parent: Pipe,
        start: Sequence[int],
        size: Size,
        *,
        hard: bool = False,
        **sampling: Any,
    ) -> None:
        super().__init__(
            parent, lambda: Crop(start, three("size", size, least=1), hard=hard), **sampling
        )


@chained("center_crop")
class CenterCropPipe(SpatialPipe):
    """Keep the box of ``size`` voxels in the middle."""

    def __init__(self, parent: Pipe, size: Size, *, hard: bool = False, **sampling: Any) -> None:
        super().__init__(
            parent, lambda: CenterCrop(three("size", size, least=1), hard=hard), **sampling
        )


@chained("pad")
class PadPipe(SpatialPipe):
    """Grow the grid by ``amount`` voxels: one number, one per axis, or a pair per axis."""

    def __init__(
        self,
        parent: Pipe,
        amount: int | Sequence[int] | Sequence[tuple[int, int]],
        **sampling: Any,
    ) -> None:
        super().__init__(parent, lambda: Pad(amount), **sampling)


@chained("crop_or_pad")
class CropOrPadPipe(SpatialPipe):
    """Bring the grid to ``size`` voxels about its centre."""

    def __init__(self, parent: Pipe, size: Size, *, hard: bool = False, **sampling: Any) -> None:
        super().__init__(
            parent, lambda: CropOrPad(three("size", size, least=1), hard=hard), **sampling
        )


@chained("flip")
class FlipPipe(SpatialPipe):
    """Mirror ``axes``, each with probability ``p`` of its own (one number or one per axis)."""

    def __init__(
        self,
        parent: Pipe,
        axes: int | Sequence[int] = (0, 1, 2),
        *,
        p: float | Sequence[float] = 1.0,
        name: str = "",
    ) -> None:
        super().__init__(parent, lambda: Flip(axes, p=p), name=name)


@chained("rotate90")
class Rotate90Pipe(SpatialPipe):
    """Turn by ``k`` quarter turns in the plane of two ``axes``, exactly; spacing turns along."""

    def __init__(
        self,
        parent: Pipe,
        k: int = 1,
        axes: tuple[int, int] = (0, 1),
        *,
        p: float = 1.0,
        name: str = "",
    ) -> None:
        super().__init__(parent, lambda: Rotate90(k, axes, p=p), name=name)


@chained("rotate")
class RotatePipe(SpatialPipe):
    """Rotate by ``degrees`` about the x, y and z axes, x first."""

    def __init__(
        self,
        parent: Pipe,
        degrees: Amount,
        *,
        p: float = 1.0,
        space: Space = "world",
        name: str = "",
        **sampling: Any,
    ) -> None:
        super().__init__(parent, lambda: Rotate(degrees, p=p, space=space), name=name, **sampling)


@chained("zoom")
class ZoomPipe(SpatialPipe):
    """Magnify by ``factor``; one draw for all axes unless three entries are given."""

    def __init__(
        self,
        parent: Pipe,
        factor: Amount,
        *,
        p: float = 1.0,
        space: Space = "world",
        name: str = "",
        **sampling: Any,
    ) -> None:
        super().__init__(parent, lambda: Zoom(factor, p=p, space=space), name=name, **sampling)


@chained("translate")
class TranslatePipe(SpatialPipe):
    """Move the content by ``amount`` millimetres (voxels with ``space="voxel"``)."""

    def __init__(
        self,
        parent: Pipe,
        amount: Amount,
        *,
        p: float = 1.0,
        space: Space = "world",
        name: str = "",
        **sampling: Any,
    ) -> None:
        super().__init__(parent, lambda: Translate(amount, p=p, space=space), name=name, **sampling)


@chained("shear")
class ShearPipe(SpatialPipe):
    """Shear by ``factor``: how far the content moves per distance from the centre."""

    def __init__(
        self,
        parent: Pipe,
        factor: Amount,
        *,
        p: float = 1.0,
        space: Space = "world",
        name: str = "",
        **sampling: Any,
    ) -> None:
        super().__init__(parent, lambda: Shear(factor, p=p, space=space), name=name, **sampling)


@chained("affine")
class AffinePipe(SpatialPipe):
    """Move the content by a 4x4 matrix, about the centre of the grid."""

    def __init__(
        self,
        parent: Pipe,
        matrix: Any,
        *,
        p: float = 1.0,
        space: Space = "world",
        name: str = "",
        **sampling: Any,
    ) -> None:
        super().__init__(parent, lambda: Affine(matrix, p=p, space=space), name=name, **sampling)


@chained("augment")
class AugmentPipe(SpatialPipe):
    """Shear, zoom, rotate, move and mirror at random, composed into one matrix.

    Parameters
    ----------
    rotate
        Degrees, as in ``rotate``.
    shear
        Factor, as in ``shear``.
    zoom
        Factor, as in ``zoom``.
    translate
        Millimetres, as in ``translate``.
    flip
        Probability of mirroring each axis, one number or one per axis.
    p
        Probability that the bundle acts at all.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> pipe = from_cases([{"image": np.zeros((8, 8, 8))}]).open_volume()
    >>> sample = next(iter(pipe.augment(rotate=(-15, 15), zoom=(0.9, 1.1), flip=0.5)))
    >>> sample["image"].shape
    (1, 8, 8, 8)
    """

    def __init__(
        self,
        parent: Pipe,
        *,
        rotate: Amount = 0.0,
        zoom: Amount = 1.0,
        translate: Amount = 0.0,
        shear: Amount = 0.0,
        flip: float | Sequence[float] = 0.0,
        p: float = 1.0,
        space: Space = "world",
        name: str = "",
        **sampling: Any,
    ) -> None:
        def make() -> SpatialOp:
            return Augment(
                rotate=rotate,
                zoom=zoom,
                translate=translate,
                shear=shear,
                flip=flip,
                p=p,
                space=space,
            )

        super().__init__(parent, make, name=name, **sampling)
