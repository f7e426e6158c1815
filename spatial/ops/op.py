"""What a spatial op is: it draws its parameters, and turns a plan into the next plan.

To add one, write a frozen dataclass with these members in a file of its own, and subclass
``voxpipe.testing.SpatialOpContract`` in its test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from ...core import CallSite, Grid
from ...core.call_site import is_looking_ahead, looking_ahead
from ...core.draws import RecordedDraw, check_record
from ...core.stream import is_random
from ..plans.plan import SpatialPlan

# Larger than what anybody crops: a place in it is drawn.
_ANY_PLAN = SpatialPlan.identity(Grid((2**20,) * 3, np.eye(4)))

Drawn = Mapping[str, Any]
"""The parameters of one application, as plain data (JSON): enough to repeat it."""


@runtime_checkable
class SpatialOp(Protocol):
    """A spatial op: a frozen dataclass, picklable, equal by value."""

    @property
    def name(self) -> str:
        """The chained form, e.g. ``"rotate"``."""

    @property
    def lattice(self) -> bool:
        """Whether it moves whole voxels only, so that the stored type is kept."""

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn | None:
        """Return the parameters for one item, or None if the op does not act on it.

        The generator is lent for this call: later ones find it elsewhere. How many numbers are
        drawn, and in which order, never depends on a drawn value.
        """

    def then(self, plan: SpatialPlan, drawn: Drawn) -> SpatialPlan:
        """Return the plan followed by this op with the parameters ``drawn``."""

    def describe(self) -> str:
        """Return the op in the words of the user, on one line."""


def displaces(op: SpatialOp) -> bool:
    """Whether an op moves voxels by other than a matrix; it says so by a ``displaces`` of its own.

    Examples
    --------
    >>> from voxpipe.spatial import Elastic, Rotate
    >>> displaces(Rotate(15)), displaces(Elastic(1, spacing=8))
    (False, True)
    """
    return bool(getattr(op, "displaces", False))


def is_hard(op: SpatialOp) -> bool:
    """Whether an op may cut hard, so that what lies outside is gone.

    Examples
    --------
    >>> from voxpipe.spatial import CenterCrop, Rotate
    >>> is_hard(CenterCrop(8, hard=True)), is_hard(CenterCrop(8)), is_hard(Rotate(15))
    (True, False, False)
    """
    inner = getattr(op, "op", op)  # of a crop that is decided by a volume
    chains = getattr(op, "members", ())
    return bool(getattr(inner, "hard", False)) or any(
        is_hard(one) for chain in chains for _, one in chain
    )


@dataclass(frozen=True)
class Step:
    """One op where it stands in a chain."""

    op: SpatialOp
    """What is done."""
    stream_name: str
    """Name of its random numbers: the name of the pipe, unique in the chain."""
    origin: CallSite | None = None
    """Where the user wrote it."""
    depth: int | None = None
    """How many entries of the item's identity it draws from; None means all. An op that was
    applied before patches were cut draws from the case, and is the same for all its patches."""
    shared: bool = False
    """Whether chains of other sources draw alike under this name, because the user gave it."""
    recorded: RecordedDraw | None = None
    """What it does in the place of what it would draw."""

    @property
    def asks_stored(self) -> bool:
        """Whether the op looks at stored voxels to decide, and so wants the plan from these.

        Such an op says so by an ``asks_stored`` of its own.
        """
        return self.recorded is None and getattr(self.op, "asks_stored", False)

    def is_drawn(self, plan: SpatialPlan | None = None) -> bool:
        """Whether items get different parameters, or some get none, by what is drawn for them.

        Parameters
        ----------
        plan
            What it is done to. Without one nothing is known of ops that have to look at voxels
            or at the size of a volume; these count as if nothing was drawn.
        """
        if self.recorded is not None:
            return False
        if plan is not None:
            return is_random(lambda generator: self.op.draw(generator, plan))
        try:
            return is_random(lambda generator: self.op.draw(generator, _ANY_PLAN))
        except Exception:  # an op may be the user's: it is asked again with the plan of an item
            return False

    def draw(self, generator: np.random.Generator, plan: SpatialPlan) -> Drawn | None:
        """Return the parameters for one item, or None if the op does not act on it."""
        if self.recorded is None:
            return self.op.draw(generator, plan)
        drawn = self.recorded.drawn
        check_record(self.op, drawn, lambda op: op.draw(generator, plan))
        return drawn

    def describe(self) -> str:
        """Return the op in the words of the user."""
        return self.op.describe() + (", replayed" if self.recorded is not None else "")

    def apply(self, plan: SpatialPlan, drawn: Drawn | None) -> SpatialPlan:
        """Return the plan after this step; ``drawn`` None means that it does not act."""
        if drawn is not None:
            return self.op.then(plan, drawn)
        return plan if self.op.lattice else plan.interpolated()


@contextmanager
def without_reading() -> Iterator[None]:
    """Let plans be estimated: where no mask is at hand, :func:`sampling_mask` returns None."""
    with looking_ahead():
        yield


def may_read() -> bool:
    """Whether plans may ask for voxels now; not while they are only estimated."""
    return not is_looking_ahead()
