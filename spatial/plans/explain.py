"""A plan in one line of words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import DTypeLike

from ...intensity.filter_axis import reach
from .clip import Clip
from .downsampling import sigmas
from .kernel_class import kernel_class
from .policy import Policy

if TYPE_CHECKING:
    from .plan import SpatialPlan


def explained(plan: SpatialPlan, policy: Policy, dtype: DTypeLike | None, channels: int) -> str:
    """Return what ``SpatialPlan.explain`` says."""
    sizes = f"{_times(plan.shape)} from {_times(plan.source.shape)}"
    region = plan.source_region(policy)
    if region.is_empty:
        return f"{sizes}: all fill"
    kind = kernel_class(plan, policy)
    work = "copy" if kind == "copy" else f"{kind} {policy.mode} interpolation"
    parts = [f"{work} of {str(region)[len('Region(') : -1]}"]
    smooths = bool(policy.antialias) and any(map(reach, sigmas(plan.rows)))
    if smooths:
        amounts = ", ".join(f"{s:.3g}" for s in sigmas(plan.rows))
        parts.append(f"smoothed by {amounts} voxels before")
    crops = sum(isinstance(stage, Clip) for stage in plan.stages)
    if crops:
        through = ", which the smoothing looks beyond without a flush() after it" * smooths
        parts.append(f"inside {crops} hard crop(s){through}")
    earlier = len(plan.lowered.earlier)
    if not plan.lowered.is_for_kernel:
        parts.append(
            f"{earlier} displacement(s) or hard crop(s) before the last displacement, so by NumPy "
            "and not by the kernel"
        )
    amount = f"{region.size} voxels"
    if dtype is not None:
        amount = f"{_bytes(region.size * channels * np.dtype(dtype).itemsize)}"
    count = "no interpolation" if kind == "copy" else "1 interpolation"
    return f"{sizes}: {', '.join(parts)}; {amount} read, {count}"


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} bytes"


def _times(shape: Sequence[int]) -> str:
    return "x".join(map(str, shape))
