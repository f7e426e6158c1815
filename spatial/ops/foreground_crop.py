"""Crops that depend on voxels: around the foreground, or centred on labels."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ...core import Region
from ...core.call_site import is_looking_ahead, shorten
from ...core.errors import GraphError, PatchSizeError, SampleError
from ...core.histogram import merge_histograms
from ...core.suggest import percentile_hint
from ...core.validate import (
    FieldChecks,
    as_choice,
    as_count,
    as_flag,
    is_finite,
    is_integer,
    or_none,
)
from ...intensity.value_op import recorded_percentile, same_as
from ...storage.content import behaviour_digest
from ...volumes.voxels import plain
from ..plans.plan import SpatialPlan, box_to_output
from .op import Params, one_or_three, size_of, size_on, size_text, three

Otherwise = Literal["error", "whole"]

# Ops that need voxels to decide do not read.
#
# They declare a need: the box of the voxels of interest in one volume. The box is found once per
# volume; then the op crops as any other. Earlier ops are undone in coordinates only.


@dataclass(frozen=True)
class Selection:
    """A user's function from the voxels (C, I, J, K) of a volume to a mask of the same shape."""

    function: Callable[[NDArray[Any]], Any] = field(compare=False)
    digest: str  # of its code: equal selections select equal voxels
    level: int = 0  # resolution that it gets, where no other is named

    @classmethod
    def of(cls, name: str, function: Any) -> Selection:
        """Return the selection by an argument; ValueError for one whose result cannot be kept."""
        if isinstance(function, Selection):
            return function
        if not callable(function):
            msg = f"{name} is a function from voxels (C, I, J, K) to a mask, got {function!r}"
            raise ValueError(msg)
        digest = behaviour_digest(function)
        if not digest:
            msg = f"{name}={shorten(function)} draws, computes with a handle or a compiled object, "
            msg += "or reads files, arguments or the environment, so its mask cannot be kept"
            do = "Give a function at the top of a module that computes with its argument alone."
            raise GraphError(msg, do=do)
        return cls(function, digest)

    def mask_of(self, volume: Any, level: int = 0) -> Any:
        """Return a label volume, 1 at selected voxels of a level; reads that level at once."""
        from ...volumes import Volume
        from ...volumes.catalog.whole_pass import at_level, coarser_levels

        number = min(level, len(coarser_levels(volume)) if level else 0)
        source = at_level(volume, number)
        # A copy: a function may change its array, and this may be that of the user.
        values = plain(np.array(source.read(Region.of_shape(source.spatial_shape)).values()))
        mask = np.asarray(self.function(values))
        if mask.shape[-3:] != values.shape[1:] or mask.ndim not in (3, 4):
            msg = f"select_fn={shorten(self.function)} made {mask.shape} of {values.shape} voxels "
            do = "Return a mask of the same shape, such as array > 0."
            raise SampleError(f"{msg}of {volume.name}", do=do)
        inside = (mask != 0).reshape(-1, *mask.shape[-3:]).any(axis=0).astype(np.uint8)
        return Volume(inside, affine=source.affine, kind="label")

    def describe(self) -> str:
        """Return the function by its name."""
        return shorten(self.function)


@dataclass(frozen=True)
class BoxNeed:
    """The smallest box with all voxels of interest in one volume."""

    key: str
    """Key of the volume in the sample."""
    above: float | str | None = None
    """Stored values above this are of interest, slope and intercept applied; a number, the
    ``"mean"`` of the volume, or a percentile such as ``"p50"``;"""
    labels: tuple[int, ...] = ()
    """or these; with neither, all that are not 0."""
    level: int = 0
    """Resolution level to read, if the volume has several; 0 is its own."""
    selection: Selection | None = field(default=None, repr=False)
    """``Selection`` of voxels by a function instead of by values."""

    def describe(self) -> str:
        from ...volumes.catalog.whole_pass import ForegroundRule

        coarse = f" at level {self.level}" if self.level else ""
        if isinstance(self.above, str):
            return f"voxels above the {self.above} of {self.key!r}{coarse}"
        rule = ForegroundRule(self.above, self.labels, self.selection)
        return f"{rule.describe()} of {self.key!r}{coarse}"

    def find(self, volume: Any, plan: SpatialPlan) -> Region | None:
        """Return the box in voxels of the present output; empty if nothing is of interest."""
        # The plan begins at stored voxels. None if the box is unknown and must not be read now.
        from ...volumes.catalog.whole_pass import ForegroundRule, known_box, occupied_box
        from ...volumes.stack_source import on_one_grid

        find = known_box if is_looking_ahead() else occupied_box
        above = self.above
        if isinstance(above, str):
            if is_looking_ahead():
                return None
            above = _statistic(volume, above)
        parts = getattr(volume, "parts", (volume,))
        if self.selection is not None and not on_one_grid(parts):
            msg = f"select_fn= gets all channels at once, but those of {self.key!r} differ in grid"
            raise SampleError(msg, do="Put the crop before stack().")
        boxes: list[Region] = []
        for part in (volume,) if on_one_grid(parts) else parts:
            region = find(part, ForegroundRule(above, self.labels, self.selection), self.level)
            if region is None:
                return None
            boxes.append(region if region.is_empty else box_to_output(plan, region, part.grid))
        full = [box for box in boxes if not box.is_empty] or boxes[:1]
        start = map(min, zip(*(box.start for box in full), strict=True))
        stop = map(max, zip(*(box.stop for box in full), strict=True))
        return Region(tuple(start), tuple(stop))


def is_statistic(name: str) -> bool:
    """Whether a name is ``"mean"`` or a percentile from ``"p0"`` to ``"p100"``."""
    return name == "mean" or (
        re.fullmatch(r"p\d+(\.\d+)?", name) is not None and float(name[1:]) <= 100
    )


def _statistic(volume: Any, name: str) -> float:
    """Return a statistic of a volume, from its catalog or from one read."""
    from ...volumes import volume_histogram, volume_statistics
    from ...volumes.stack_source import on_one_grid

    parts = getattr(volume, "parts", (volume,))
    if not on_one_grid(parts):
        histogram = merge_histograms([volume_histogram(part) for part in parts])
        return histogram.mean if name == "mean" else histogram.percentile(float(name[1:]))
    statistics: Any = volume_statistics(volume)
    if name == "mean":
        return float(statistics.mean)
    q = float(name[1:])
    return recorded_percentile(statistics, q, lambda: volume_histogram(volume))


def _as_key(name: str, key: Any) -> str:
    if not isinstance(key, str) or not key:
        msg = f"{name} is one volume, by its key in the sample such as 'image', got {key!r}"
        raise ValueError(msg)
    return key


def _as_labels(name: str, labels: Any) -> tuple[int, ...]:
    is_several = isinstance(labels, Iterable) and not isinstance(labels, (str, bytes))
    each = tuple(labels) if is_several else (labels,)
    if not each or not all(map(is_integer, each)):
        raise ValueError(f"{name} are whole numbers, one or several, got {labels!r}")
    return tuple(sorted({int(n) for n in each}))


class NeedingOp(FieldChecks):
    """A crop that needs voxels to decide; without a volume it can only describe itself."""

    name: ClassVar[str]
    lattice: ClassVar[bool] = True
    places: ClassVar[bool] = True
    hard: bool
    fallback: Otherwise
    checks: ClassVar[Any] = {
        "key": _as_key,
        "classes": or_none(_as_labels),
        "fallback": partial(as_choice, choices=("error", "whole")),
        "level": as_count,
        "hard": as_flag,
    }

    @property
    def needs(self) -> BoxNeed:
        """The box that the op needs."""
        raise NotImplementedError

    def decide(self, box: Region | None, plan: SpatialPlan, volume: str) -> Params | None:
        """Return the parameters for one item."""
        # ``box`` is in voxels of the present output, None for an estimate; ``volume`` is a name.
        raise NotImplementedError

    def of_interest(self, box: Region | None, plan: SpatialPlan, volume: str) -> Region:
        """Return the part of the box in the present grid; empty only if that is allowed."""
        whole = Region.of_shape(plan.shape)
        inside = whole if box is None else box.intersect(whole)
        if inside.is_empty and self.fallback == "error":
            raise PatchSizeError(
                f"there is nothing to crop to: no {self.needs.describe()} in {volume}, within the "
                "present grid",
                do='Give fallback="whole", or leave such cases out.',
            )
        return inside

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params | None:
        msg = f"{self.name} needs {self.needs.describe()} to decide, and has no volume"
        raise GraphError(msg, do=f"Use the pipe .{self.name}(...), or AnsweredOp(op, volume).")

    def then(self, plan: SpatialPlan, params: Params) -> SpatialPlan:
        return plan.crop(params["start"], params["size"], hard=self.hard)

    def describe(self) -> str:
        raise NotImplementedError


def stored_volume(name: str, value: Any) -> Any:
    """Return the stored volume below a lazy one."""
    return getattr(value, "stored_volume", value)


class ByStoredVolume(FieldChecks):
    """Shared behaviour of ops that read a stored volume, by whose token they are equal."""

    looks_at_stored: ClassVar[bool] = True
    volume_field: ClassVar[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "token", getattr(self, self.volume_field).token)


@dataclass(frozen=True)
class AnsweredOp(ByStoredVolume):
    """A needing op with its volume: a spatial op as any other."""

    op: NeedingOp
    """The crop."""
    volume: Any = field(compare=False, repr=False)
    """Volume that is read for the box."""
    token: str = ""
    """Token of the volume: ops are equal if they read the same volume."""

    name = same_as("op.name")
    lattice = same_as("op.lattice")
    then = same_as("op.then")
    describe = same_as("op.describe")
    volume_field: ClassVar[str] = "volume"
    checks: ClassVar[Any] = {"volume": stored_volume}

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Params | None:
        return self.op.decide(self.op.needs.find(self.volume, plan), plan, self.volume.name)


def _as_threshold(name: str, above: Any) -> float | str:
    if isinstance(above, str) and is_statistic(above):
        return above
    if not is_finite(above):
        msg = f'{name} is a finite number, "mean" or a percentile such as "p50", got {above!r}'
        raise ValueError(msg)
    return float(above)


@dataclass(frozen=True)
class ForegroundCrop(NeedingOp):
    """Keep the smallest box of the present grid with all voxels of interest, and a margin.

    The voxels of interest come from one stored volume, found once. Ops before the crop move the box
    and are not carried out for it. If they turn, it is the box around the turned one.

    Examples
    --------
    >>> ForegroundCrop("image", above=-500, margin=4).describe()
    "crop to voxels above -500 of 'image', margin 4"
    >>> ForegroundCrop("label", classes=(1, 2)).needs
    BoxNeed(key='label', above=None, labels=(1, 2), level=0)
    """

    key: str = "image"
    """Which volume of the sample is asked."""
    above: float | str | None = None
    """Values above this are of interest, as stored, slope and intercept applied; 0 by default. Or
    ``"mean"`` of the volume, or a percentile, ``"p50"``, as its catalog has them."""
    classes: Any = None
    """These labels are of interest instead, one or several."""
    margin: Any = 0
    """Voxels of the present grid to add on either side: one number, or one per axis."""
    divisible: Any = 1
    """The size is made a multiple of this, by adding on both sides: one number, or one per axis."""
    overhang: bool = False
    """Whether margin and multiple may reach over the grid, filled by padding; else they end
    there."""
    fallback: Otherwise = "error"
    """Where nothing is of interest: ``"error"``, or the ``"whole"`` grid stays."""
    level: int = 0
    """Resolution level of a pyramid to read, if there is one. The box then has one more voxel of
    that level, and misses details that the level has lost."""
    hard: bool = False
    """Whether the voxels outside are gone."""
    select_fn: Any = None
    """A function from the stored voxels (C, I, J, K), slope and intercept applied, to a mask of the
    voxels of interest. It gets the whole volume, or the whole ``level``. Its mask is kept for each
    content of a file, until its code changes."""

    name: ClassVar[str] = "foreground_crop"
    checks: ClassVar[Any] = {
        "select_fn": or_none(Selection.of),
        "above": or_none(_as_threshold),
        "margin": partial(one_or_three, least=0),
        "divisible": partial(one_or_three, least=1),
        "overhang": as_flag,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        own = {name: getattr(self, name) for name in ("above", "classes", "select_fn")}
        conditions = [f"{name}={value!r}" for name, value in own.items() if value is not None]
        if len(conditions) > 1:
            msg = f"{self.name} takes above=, classes= or select_fn=, got {', '.join(conditions)}"
            raise ValueError(msg)

    @property
    def likely_mistakes(self) -> tuple[str, ...]:
        name = self.above if isinstance(self.above, str) else ""
        is_percentile = name.startswith("p") and name != "p1"
        return percentile_hint("above", [float(name[1:])]) if is_percentile else ()

    @property
    def needs(self) -> BoxNeed:
        """The box of the voxels of interest."""
        is_usual = self.above is None and self.classes is None and self.select_fn is None
        above = 0.0 if is_usual else self.above
        return BoxNeed(self.key, above, self.classes or (), self.level, self.select_fn)

    def decide(self, box: Region | None, plan: SpatialPlan, volume: str) -> Params | None:
        inside = self.of_interest(box, plan, volume)
        if inside.is_empty:
            return None
        if box is None:  # an estimate
            return {"start": list(inside.start), "size": list(inside.shape)}
        margin = three("margin", self.margin, least=0)
        divisible = three("divisible", self.divisible, least=1)
        start, sizes = [], []
        for (a, b), more, unit, n in zip(inside, margin, divisible, plan.shape, strict=True):
            # An axis of one voxel stays one: 2-D data have no room to add along it.
            room = n > 1
            first, last = (a - more, b + more) if room else (a, b)
            if not self.overhang:
                first, last = max(first, 0), min(last, n)
            size = math.ceil((last - first) / unit) * unit if room else last - first
            first -= (size - (last - first)) // 2
            if not self.overhang:
                # Moved inward before it is cut.
                first = max(0, min(first, n - size))
                size = min(size, n)
            start.append(first)
            sizes.append(size)
        return {"start": start, "size": sizes}

    def describe(self) -> str:
        more = f", margin {self.margin}" if self.margin else ""
        multiple = f", a multiple of {self.divisible}" if self.divisible != 1 else ""
        hard = "hard " if self.hard else ""
        return f"{hard}crop to {self.needs.describe()}{more}{multiple}"


@dataclass(frozen=True)
class LabelCrop(NeedingOp):
    """Keep a box of ``size`` about the middle of the box of labels.

    The box may reach over the grid; the padding rule fills missing voxels. For patches about a
    random voxel of a class see ``lazy_patch(mask=, class_weights=)``.

    Examples
    --------
    >>> LabelCrop((96, 96, 64), classes=3).describe()
    "crop 96x96x64 about label 3 of 'label'"
    """

    size: Any
    """Voxels: one number (of 2-D data in their plane), or one per axis; None keeps an axis."""
    key: str = "label"
    """Which volume of the sample is asked."""
    classes: Any = None
    """Which labels, one or several; by default all but 0."""
    fallback: Otherwise = "error"
    """Where there is none of them: ``"error"``, or a box about the middle of the ``"whole"``."""
    level: int = 0
    """Which resolution of a pyramid to look at, where there is one."""
    hard: bool = False
    """Whether the voxels outside are gone."""

    name: ClassVar[str] = "label_crop"
    checks: ClassVar[Any] = {"size": size_of}

    @property
    def needs(self) -> BoxNeed:
        """The box of the labels."""
        return BoxNeed(self.key, None, self.classes or (), self.level)

    def decide(self, box: Region | None, plan: SpatialPlan, volume: str) -> Params | None:
        inside = self.of_interest(box, plan, volume)
        if inside.is_empty:
            inside = Region.of_shape(plan.shape)
        # The lower place if the middle is between two voxels, or the size is even.
        size = size_on(self.size, plan)
        entries = self.size if isinstance(self.size, tuple) else (self.size,) * 3
        start = [
            0 if entry is None else (a + b - n) // 2
            for (a, b), n, entry in zip(inside, size, entries, strict=True)
        ]
        return {"start": start, "size": list(size)}

    def describe(self) -> str:
        size = size_text(self.size)
        return f"{'hard ' if self.hard else ''}crop {size} about {self.needs.describe()}"


OPS = (ForegroundCrop, LabelCrop)
