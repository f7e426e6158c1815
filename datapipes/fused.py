"""Several spatial pipes as one; it remembers its members."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from ..core import Sample
from .datapipe import PerItem
from .spatial import Adding, SpatialPipe, any_moving, stepped


class FusedSpatial(PerItem):
    """Add the steps of all members to the plan at once.

    Each step keeps its stream's name and its origin, so that draws and errors are those
    of the pipes that the user wrote.
    """

    def __init__(self, members: Sequence[SpatialPipe]) -> None:
        super().__init__(members[0].parent)
        # Members travel without their parents: those are upstream of this pipe already.
        self.steps = tuple(step for member in members for step in member.steps)
        self.adding = Adding(self.steps)
        self.stream_names = tuple(name for member in members for name in member.stream_names)
        self.calls = tuple(member.describe() for member in members)
        self.samplings = tuple(member.sampling for member in members)
        self.origin = members[-1].origin

    @classmethod
    def joining(cls, first: SpatialPipe | FusedSpatial, second: SpatialPipe) -> FusedSpatial:
        """Return ``first`` with ``second`` added to its end."""
        if isinstance(first, SpatialPipe):
            return cls([first, second])
        fused = copy.copy(first)
        fused.steps = (*first.steps, *second.steps)
        fused.adding = Adding(fused.steps)
        fused.stream_names = (*first.stream_names, *second.stream_names)
        fused.calls = (*first.calls, second.describe())
        fused.samplings = (*first.samplings, second.sampling)
        fused.origin = second.origin
        return fused

    def describe(self) -> str:
        """Return the members as the user wrote them."""
        return " + ".join(self.calls)

    def settings(self) -> Any:
        """Return those of the members."""
        return self.calls

    def apply(self, item: Any) -> Sample:
        """Return the sample with all steps added to its plan."""
        if any_moving(item):  # of which a later member may ask what an earlier one left
            for step, sampling in zip(self.steps, self.samplings, strict=True):
                item = stepped(self, item, Adding((step,)), sampling)
            sample: Sample = item
            return sample
        sample = stepped(self, item, self.adding)
        for sampling in self.samplings:
            if sampling.changes:
                sample = stepped(self, sample, Adding(()), sampling)
        return sample
