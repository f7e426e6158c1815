"""Ops that need voxels to decide: what they declare, and who answers.

Such an op does not read. It says what it needs, the box of the voxels of interest in one volume,
and that is found once per volume, from this volume alone; then the op crops the plan as any other.
What ops before it did is undone in coordinates only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from ...core import Region
from ...core.errors import GraphError
from ...core.histogram import merge_histograms
from ...intensity.value_op import recorded_percentile
from ..plans.plan import SpatialPlan, box_to_output
from ..volume_like import stored_of
from .op import Drawn, may_read


@dataclass(frozen=True)
class BoxNeed:
    """The smallest box with all voxels of interest in one volume."""

    key: str
    """Which volume of the sample."""
    above: float | str | None = None
    """Stored values above this are of interest, slope and intercept applied; a number, the
    ``"mean"`` of the volume, or a percentile such as ``"p50"``;"""
    labels: tuple[int, ...] = ()
    """or these; with neither, all that are not 0."""
    level: int = 0
    """Which resolution to look at, where the volume has several; 0 is its own."""

    def describe(self) -> str:
        """Return the need in words.

        Examples
        --------
        >>> BoxNeed("label", labels=(1, 2)).describe()
        "labels 1, 2 of 'label'"
        """
        from ...volumes.catalog.bounding_box import ForegroundRule

        coarse = f" at level {self.level}" if self.level else ""
        if isinstance(self.above, str):
            return f"voxels above the {self.above} of {self.key!r}{coarse}"
        return f"{ForegroundRule(self.above, self.labels).describe()} of {self.key!r}{coarse}"

    def answered(self, volume: Any, plan: SpatialPlan) -> Region | None:
        """Return the box in voxels of the present output; empty if nothing is of interest.

        ``volume`` lies in a file or in memory, and the plan begins at stored voxels. None where
        the box is not known, and nothing shall be read now.
        """
        from ...volumes.catalog.bounding_box import ForegroundRule, known_box, occupied_box
        from ...volumes.stacked import on_one_grid

        find = occupied_box if may_read() else known_box
        above = self.above
        if isinstance(above, str):
            if not may_read():
                return None
            above = statistic(volume, above)
        parts = getattr(volume, "parts", (volume,))
        boxes: list[Region] = []
        for part in (volume,) if on_one_grid(parts) else parts:
            found = find(part, ForegroundRule(above, self.labels), self.level)
            if found is None:
                return None
            boxes.append(found if found.is_empty else box_to_output(plan, found, part.grid))
        return _around(boxes)


def _around(boxes: Sequence[Region]) -> Region:
    """Return the box around all that are not empty; an empty one where all are."""
    full = [box for box in boxes if not box.is_empty] or boxes[:1]
    start = map(min, zip(*(box.start for box in full), strict=True))
    stop = map(max, zip(*(box.stop for box in full), strict=True))
    return Region(tuple(start), tuple(stop))


def is_statistic(name: str) -> bool:
    """Whether a name is ``"mean"`` or a percentile from ``"p0"`` to ``"p100"``.

    Examples
    --------
    >>> [is_statistic(name) for name in ("mean", "p99.5", "p101", "median")]
    [True, True, False, False]
    """
    return name == "mean" or (
        re.fullmatch(r"p\d+(\.\d+)?", name) is not None and float(name[1:]) <= 100
    )


def statistic(volume: Any, name: str) -> float:
    """Return a number over all voxels of a volume; its catalog has it, or it is read once."""
    from ...volumes import volume_histogram, volume_statistics
    from ...volumes.stacked import on_one_grid

    parts = getattr(volume, "parts", (volume,))
    if not on_one_grid(parts):
        histogram = merge_histograms([volume_histogram(part) for part in parts])
        return histogram.mean if name == "mean" else histogram.percentile(float(name[1:]))
    recorded: Any = volume_statistics(volume)
    if name == "mean":
        return float(recorded.mean)
    q = float(name[1:])
    return recorded_percentile(recorded, q, lambda: volume_histogram(volume))


@runtime_checkable
class NeedingOp(Protocol):
    """A spatial op that needs voxels to decide."""

    @property
    def name(self) -> str:
        """The chained form."""

    @property
    def lattice(self) -> bool:
        """Whether it moves whole voxels only."""

    @property
    def needs(self) -> BoxNeed:
        """What it needs to know."""

    def decide(self, box: Region | None, plan: SpatialPlan, volume: str) -> Drawn | None:
        """Return the parameters for one item.

        Parameters
        ----------
        box
            The answer, in voxels of the present output; None for an estimate.
        plan
            The plan so far.
        volume
            Name of the volume that was asked, for messages.
        """

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the plan followed by this op with the parameters ``drawn``."""

    def describe(self) -> str:
        """Return the op in the words of the user, on one line."""


@dataclass(frozen=True)
class Answered:
    """A needing op together with the volume that answers it: a spatial op as any other."""

    op: NeedingOp
    """What is done."""
    volume: Any = field(compare=False, repr=False)
    """Who is asked."""
    token: str = ""
    """Of the volume: ops are equal if they ask the same."""

    asks_stored: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "volume", stored_of(self.volume))
        object.__setattr__(self, "token", self.volume.token)

    @property
    def name(self) -> str:
        """That of the op."""
        return self.op.name

    @property
    def lattice(self) -> bool:
        """That of the op."""
        return self.op.lattice

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn | None:
        """Return what the op decides; no number is drawn."""
        return self.op.decide(self.op.needs.answered(self.volume, plan), plan, self.volume.name)

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the plan followed by the op."""
        return self.op.then(plan, drawn)

    def describe(self) -> str:
        """Return the op in words."""
        return self.op.describe()


class NotAnswered:
    """What a needing op is before it has a volume to ask: it can be described, not drawn."""

    name: ClassVar[str]

    @property
    def needs(self) -> BoxNeed:
        """What it needs to know."""
        raise NotImplementedError

    def describe(self) -> str:
        """Return the op in the words of the user, on one line."""
        raise NotImplementedError

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Mapping[str, Any] | None:
        """Refuse: nobody has been asked.

        Raises
        ------
        GraphError
            Always.
        """
        raise GraphError(
            f"{self.name} needs {self.needs.describe()} to decide, and nobody was asked",
            do=f"Use the pipe .{self.name}(...), or Answered(op, volume).",
        )
