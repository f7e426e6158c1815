"""Where the voxels of a chain of spatial ops come from, worked out one op at a time.

Independent of plans: no matrices are composed, no stages are carried along. Every op is a function
from places on its output to places on its input (``op_oracle``); a chain goes back through these
functions, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from op_oracle import Moved, moved_by

from voxpipe.core import Grid, Region
from voxpipe.spatial import Policy, SpatialOp
from voxpipe.spatial.ops.choices import SpatialChoice
from voxpipe.testing.spatial_oracle import Floats, sample_at

# A place within this of a whole voxel is that voxel: what plans promise, in voxels.
_WHOLE = 1e-4


@dataclass
class Chain:
    """Ops applied one after another to a volume of 2-D or 3-D data.

    Examples
    --------
    >>> from voxpipe.spatial import Crop, Flip
    >>> chain = Chain(Grid((4, 2, 2), np.eye(4)))
    >>> chain.add(Flip(0), {"axes": [0]})
    >>> chain.add(Crop((1, 0, 0), (2, 2, 2)), {"start": [1, 0, 0], "size": [2, 2, 2]})
    >>> chain.places()[0][0, :1].tolist(), chain.grid.shape
    ([2.0], (2, 2, 2))
    """

    source: Grid
    """Of the stored volume."""
    steps: list[Moved] = field(default_factory=list)
    """What was done."""

    @property
    def grid(self) -> Grid:
        """The grid at the end."""
        return self.steps[-1].grid if self.steps else self.source

    def add(self, op: SpatialOp, drawn: Mapping[str, Any]) -> None:
        """Append an op that was drawn to do ``drawn``; of a choice what was chosen, in turn."""
        if isinstance(op, SpatialChoice):
            for member, each in zip(drawn["chosen"], drawn["drawn"], strict=True):
                for (_, one), values in zip(op.members[member], each, strict=True):
                    if values is not None:
                        self.add(one, values)
            return
        self.steps.append(moved_by(op, drawn, self.grid))

    def places(self) -> tuple[Floats, NDArray[np.bool_], Region]:
        """Return where each output voxel comes from, which are fill, and where padding begins.

        Places are (3, N), in source voxels. A hard crop of voxels that were moved whole narrows
        the region in which the volume exists; after an interpolation what lies outside is fill.
        """
        where = np.indices(self.grid.shape, dtype=np.float64).reshape(3, -1)
        outside = np.zeros(where.shape[1], dtype=bool)
        bounds = self.source.region
        for number in reversed(range(len(self.steps))):
            step = self.steps[number]
            if step.hard:
                box = self._whole_box(number)
                if box is None:
                    last = np.array(step.grid.shape, dtype=np.float64)[:, None] - 1
                    outside |= np.any((where < -0.5) | (where > last + 0.5), axis=0)
                else:
                    bounds = bounds.intersect(box)
            where = step.back(where)
        return where, outside, bounds

    def _whole_box(self, number: int) -> Region | None:
        """Return the source voxels of the grid after a step, if it was moved by whole voxels."""
        if any(step.bends for step in self.steps[:number]):
            return None
        where = np.indices(self.steps[number].grid.shape, dtype=np.float64).reshape(3, -1)
        for step in reversed(self.steps[: number + 1]):
            where = step.back(where)
        whole = np.rint(where)
        if np.abs(where - whole).max() > _WHOLE:
            return None
        sizes = whole.max(axis=1) - whole.min(axis=1) + 1
        # Whole places may still skip voxels (a zoom by a half): then these are not a box.
        if math.prod(sizes) != where.shape[1]:
            return None
        low = tuple(int(v) for v in whole.min(axis=1))
        return Region(low, tuple(int(v) + 1 for v in whole.max(axis=1)))

    def sampled(self, values: NDArray[Any], policy: Policy) -> Floats:
        """Return what the chain gives of a volume (C, I, J, K), as float64."""
        where, outside, bounds = self.places()
        found = sample_at(values, where, bounds, policy)
        found[:, outside] = policy.fill
        return found.reshape(values.shape[0], *self.grid.shape)
