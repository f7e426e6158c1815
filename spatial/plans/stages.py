"""What a plan does besides its matrix: hard crops and displacements, and their order.

An output voxel begins at ``matrix @ index``, a place in the source, and goes back through the
stages, the last one first. A displacement moves it on; a clip that it lies outside of makes it
fill. All stages speak of source coordinates, so an op that comes later leaves them as they are.

What the kernel does in one pass is one displacement with any clips after it, both as functions of
the output index. :func:`lowered` gives a plan that form; stages that came before are left over,
and are done place by place: one displacement by the kernel, more by NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .clip import Clip
from .displacement import Displacement, Floats, Moves
from .pull_back import REACH, Matrix, extremes

Stage = Clip | Displacement

KERNEL_DISPLACEMENTS = 2
"""How many in one plan the kernel does."""
BY_NUMPY = (
    "the kernel does two displacements in one plan, and no hard crop before one; NumPy, which does "
    "this, takes some 70 times as long (2.8 s instead of 0.04 s for 96x96x96 on one core), so "
    "leave one out, or put flush() before the last one, for an interpolation more"
)
"""What it means that a plan is not for the kernel, and what to do."""


class Lowered(NamedTuple):
    """Stages as ``resample`` takes them."""

    clips: tuple[Clip, ...] = ()
    """Boxes of the output index."""
    displacement: Displacement | None = None
    """A field of the output index."""
    earlier: tuple[Stage, ...] = ()
    """What came before these, of the source index."""

    @property
    def is_for_kernel(self) -> bool:
        """Whether the kernel does it: nothing came before, or one displacement."""
        return not self.earlier or (
            len(self.earlier) < KERNEL_DISPLACEMENTS and isinstance(self.earlier[0], Displacement)
        )


NO_STAGES = Lowered()


def lowered(stages: Sequence[Stage], matrix: Matrix) -> Lowered:
    """Return the stages of a plan with a pull-back ``matrix`` (4x4) for the resampler.

    Examples
    --------
    >>> import numpy as np
    >>> box = Clip(np.eye(4), (4, 4, 4))
    >>> field = Displacement(np.zeros((3, 1, 1, 1)), np.eye(4))
    >>> found = lowered([box, field, box], np.eye(4))
    >>> len(found.clips), found.displacement is not None, len(found.earlier)
    (1, True, 1)
    """
    clips: list[Clip] = []
    for number, stage in reversed(list(enumerate(stages))):
        if isinstance(stage, Displacement):
            return Lowered(tuple(clips), stage.after(matrix), tuple(stages[:number]))
        clips.insert(0, stage.after(matrix))
    return Lowered(tuple(clips))


def moves_of(matrix: Matrix, shape: Sequence[int], stages: Lowered) -> Moves:
    """Return how far displacements may move any place of an output, per source axis.

    Only the control points count that some voxel of the output reaches, so a patch of a volume
    that is deformed as a whole reads no more than its own surroundings.

    Parameters
    ----------
    matrix
        Pull-back, output index to source index.
    shape
        Shape of the output.
    stages
        The stages of the plan.

    Returns
    -------
    (smallest, largest) for each axis, or nothing where nothing is displaced.
    """
    if stages.displacement is None or 0 in shape:
        return ()
    moves = stages.displacement.bounds_between((0, 0, 0), [n - 1 for n in shape])
    lows, highs = extremes(matrix, shape)
    for stage in reversed(stages.earlier):
        if isinstance(stage, Displacement):
            found = stage.bounds_between(
                [low + move for low, (move, _) in zip(lows, moves, strict=True)],
                [high + move for high, (_, move) in zip(highs, moves, strict=True)],
            )
            moves = tuple((a + c, b + d) for (a, b), (c, d) in zip(moves, found, strict=True))
    return moves


def gone_back(
    places: Sequence[Floats], stages: Sequence[Stage]
) -> tuple[list[Floats], NDArray[np.bool_] | None]:
    """Return where places lead through stages, the last one first, and which a clip left out.

    Parameters
    ----------
    places
        Source coordinates, three arrays of one shape.
    stages
        In source coordinates, the first applied first.
    """
    outside: NDArray[np.bool_] | None = None
    x, y, z = places
    for stage in reversed(stages):
        if isinstance(stage, Clip):
            for (a, b, c, t), size in zip(stage.matrix[:3], stage.shape, strict=True):
                found = a * x + b * y + c * z + t
                beyond = (found < -REACH) | (found > size - 1 + REACH)
                outside = beyond if outside is None else outside | beyond
        else:
            dx, dy, dz = stage.at_places((x, y, z))
            x, y, z = x + dx, y + dy, z + dz
    return [x, y, z], outside
