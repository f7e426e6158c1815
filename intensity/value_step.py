"""One value op of a chain, and the application of a chain to an array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..core import IO_COUNTERS, Grid
from ..core.draws import OpStep, check_record
from ..core.errors import SampleError, VoxpipeError, add_location
from .native_values import Change, NoRange, change_values
from .value_op import NO_HALO, Epilogue, Facts, Halo, Params, ValueOp


@dataclass(frozen=True)
class ValueStep(OpStep):
    """One value op of a chain."""

    op: ValueOp
    """The op."""
    key: str = ""
    """Key of the volume: parameters are drawn for the sample, noise for each volume."""
    mask: Any = None
    """The volume of ``op.mask_key``, if any."""
    draws_from: str = ""
    """Name of a shared stream, so that both parts choose alike; empty for its own."""

    def draw(self, generator: np.random.Generator, op: ValueOp) -> Params | None:
        """Return the parameters for an item, whose op is ``op``, or None if it does not act."""
        if self.record is None:
            return op.draw(generator)
        try:
            check_record(op, self.record.params, lambda one: one.draw(generator))
        except VoxpipeError as error:
            raise error.at(self.origin)  # noqa: B904
        return self.record.params

    def channels(self, count: int) -> int:
        """Return the number of channels afterwards; an error carries the user's line."""
        try:
            return self.op.channels(count)
        except VoxpipeError as error:
            raise error.at(self.origin)  # noqa: B904


Acting = tuple[ValueStep, Params]
"""A step that acts on an item, with its draws."""


def total_halo(acting: Sequence[Acting], grid: Grid, far: Halo | None = None) -> Halo:
    """Return the halo of all steps together: the sum of their halos."""
    # Beyond ``far`` values do not change, and some ops need no halo there.
    halos = [step.op.halo(params, grid) for step, params in acting]
    i, j, k = (sum(axis) for axis in zip(NO_HALO, *halos, strict=True))
    if far is None or not all(step.op.keeps_faces for step, _ in acting):
        return (i, j, k)
    looks = [0, 0, 0]
    for n in reversed(range(len(halos))):
        for axis, reach in enumerate(halos[n]):
            # A filter keeps constant input unchanged.
            edge = far[axis] + sum(before[axis] for before in halos[:n])
            # At least one voxel: an axis of a single voxel is filtered differently.
            looks[axis] = min(looks[axis] + reach, max(looks[axis], edge, 1))
    return (looks[0], looks[1], looks[2])


def types_of(steps: Sequence[ValueStep], first: np.dtype[Any]) -> tuple[np.dtype[Any], ...]:
    """Return the input type of the first step, and the type of each result.

    ``first`` is the resampled patch's type; float32 if the first step works in it.
    """
    if steps and not steps[0].op.keeps_dtype:
        first = np.dtype(np.float32)
    types = [first]
    for step in steps:
        types.append(step.op.dtype(types[-1]))
    return tuple(types)


def apply_steps(
    acting: Sequence[tuple[ValueStep, Params, Facts]], array: NDArray[Any]
) -> NDArray[Any]:
    """Return ``array`` after the steps, in order; it may be changed in place."""
    waiting: list[tuple[ValueStep, Change]] = []
    for step, params, facts in acting:
        if not step.op.keeps_dtype and array.dtype != np.float32:
            array = array.astype(np.float32)
        try:
            changes = step.op.changes(params, facts)
        except Exception as error:
            raise add_location(error, step.origin)  # noqa: B904
        if changes is None:
            waiting = _change(array, waiting)
            try:
                size, array = array.shape[1:], step.op.apply(array, params, facts)
                if np.shape(array)[1:] != size:
                    kind, shape = type(step.op).__name__, np.shape(array)
                    msg = f"{kind}.apply() returned {type(array).__name__} of shape {shape}"
                    raise SampleError(msg, do=f"Return an array of shape (C, {str(size)[1:]}.")
            except Exception as error:
                raise add_location(error, step.origin)  # noqa: B904
        waiting += [(step, change) for change in changes or ()]
        IO_COUNTERS.count(value_passes=1)
    _change(array, waiting)
    return array


def _change(array: NDArray[Any], waiting: list[tuple[ValueStep, Change]]) -> list[Any]:
    """Apply the waiting changes in as few passes as possible; return an empty list."""
    try:
        if waiting:
            change_values(array, [change for _, change in waiting])
    except NoRange as error:
        raise add_location(error, waiting[error.number][0].origin)  # noqa: B904
    return []


def fold_epilogues(
    acting: Sequence[tuple[ValueStep, Params, Facts]],
) -> tuple[Epilogue | None, Sequence[tuple[ValueStep, Params, Facts]]]:
    """Return as many first steps as possible as one epilogue, and the others."""
    together: Epilogue | None = None
    for n, (step, params, facts) in enumerate(acting):
        try:
            epilogue = step.op.as_epilogue(params, facts)
        except Exception as error:
            raise add_location(error, step.origin)  # noqa: B904
        if epilogue is None:
            return together, acting[n:]
        together = epilogue if together is None else together.then(epilogue)
    return together, ()
