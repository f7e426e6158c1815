"""An array through a plan: a prediction back onto the grid of its volume, for instance."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..plans.plan import SpatialPlan
from ..plans.policy import INTENSITY, Policy
from .resample import resample
from .source import Source


def apply_plan(plan: SpatialPlan, array: NDArray[Any], policy: Policy = INTENSITY) -> NDArray[Any]:
    """Return an array as it is on the output grid of a plan, in one resample.

    Parameters
    ----------
    plan
        Its source is the grid of the array: ``patch.whole_plan.inverse()`` for what was
        predicted on a patch.
    array
        (C, I, J, K) or (I, J, K), integers, booleans or floats; booleans count as uint8.
    policy
        How it is sampled: ``Policy("linear", "constant")`` for probabilities, ``LABEL`` for labels.

    Returns
    -------
    A new array with as many axes: of ``policy.dtype``, or else of the type of the array where
    whole voxels are moved or taken (``"nearest"``), and otherwise float32.

    Raises
    ------
    ValueError
        The array has another shape than the plan's source, or another kind of type.

    Examples
    --------
    A patch that was mirrored, and a prediction on it, laid into the volume:

    >>> from voxpipe.core import Grid
    >>> from voxpipe.spatial import LABEL, Flip
    >>> volume = SpatialPlan.identity(Grid((4, 4, 4), np.eye(4)))
    >>> plan = Flip().then(volume.crop((1, 0, 0), (2, 2, 1)), {"axes": [0]})
    >>> predicted = np.array([[[1], [2]], [[3], [4]]], np.uint8)
    >>> apply_plan(plan.inverse(), predicted, LABEL)[:, :2, 0].tolist()
    [[0, 0], [3, 4], [1, 2], [0, 0]]
    """
    given = np.asarray(array)
    has_channels = given.ndim == 4
    voxels = given if has_channels else given[None]
    if given.ndim not in (3, 4) or voxels.shape[1:] != plan.source.shape:
        i, j, k = plan.source.shape
        msg = f"the plan begins at (C, {i}, {j}, {k}) or ({i}, {j}, {k}), got {given.shape}"
        raise ValueError(msg)
    source = Source(voxels, (0, 0, 0), plan.bounds)
    kept = (plan.keeps_dtype and plan.is_copy) or policy.mode == "nearest"
    dtype = policy.dtype or (source.array.dtype.newbyteorder("=") if kept else np.dtype(np.float32))
    out = np.empty((voxels.shape[0], *plan.shape), dtype)
    resample(source, plan.matrix, policy, out, plan.lowered)
    return out if has_channels else out[0]
