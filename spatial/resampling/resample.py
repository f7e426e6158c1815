"""The one call that turns stored voxels into output voxels.

``resample`` decides, the kernels act: a plan of whole voxels is copied in the stored type
(``copy_voxels``), every other one is gathered block by block (``interpolate``). The native kernel
(``native``) takes the place of either where it is built, without any caller noticing: the two
stay as its reference, and for what it does not do.

Interpolating with gathers in NumPy is exact to 1e-6 of the value range whatever the length of an
axis, and faster than ``affine_grid`` plus ``grid_sample`` (96^3 from int16 on one core: 20 ms
instead of 46), because neither a float copy of the source nor a dense grid is made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core import TALLY, Region
from ...core.rows import rows_of
from ...intensity import Epilogue
from ...intensity.filter_axis import reach
from ..plans.displacement import Moves
from ..plans.downsampling import sigmas
from ..plans.policy import Policy
from ..plans.pull_back import Matrix, source_region, whole_voxel_matrix
from ..plans.stages import NO_STAGES, Lowered, moves_of
from . import native
from .convert import bfloat16_bits, convert
from .copy_voxels import copy_voxels
from .interpolate import interpolate
from .prefilter import smoothed


@dataclass(frozen=True, eq=False)
class Source:
    """Stored voxels, and where in the volume they lie."""

    array: NDArray[Any]
    """(C, i, j, k), any integer or float type, strides and byte order; read-only is fine."""
    start: tuple[int, int, int]
    """Volume index of ``array[:, 0, 0, 0]``."""
    bounds: Region
    """The voxels that count as volume, in volume indices; padding begins at its faces."""
    slope: float = 1.0
    """A value is ``stored * slope + intercept``."""
    intercept: float = 0.0
    """See ``slope``."""

    def __post_init__(self) -> None:
        if self.array.ndim != 4:
            msg = f"a source is (C, i, j, k), got shape {self.array.shape}"
            raise ValueError(msg)
        if self.array.dtype.kind not in "iufb":
            msg = f"a source holds integers or floats, got {self.array.dtype}"
            raise ValueError(msg)
        if self.array.dtype.kind == "b":
            object.__setattr__(self, "array", self.array.view(np.uint8))

    @property
    def region(self) -> Region:
        """The voxels at hand, in volume indices."""
        return Region.of_shape(self.array.shape[1:]).shift(self.start)

    def narrow(self, region: Region) -> Source:
        """Return the part inside ``region``, as a view.

        Raises
        ------
        ValueError
            Some voxel of ``region`` is not at hand.
        """
        # Plain numbers: regions would take a third of the time of a small copy.
        (i, j, k), (a, b, c), (x, y, z) = self.start, region.start, region.stop
        _, size_i, size_j, size_k = self.array.shape
        inside: tuple[slice, slice, slice]
        if region.is_empty:
            inside = (slice(0, 0),) * 3
        elif a < i or b < j or c < k or x > i + size_i or y > j + size_j or z > k + size_k:
            msg = f"resampling needs {region}, but only {self.region} was read"
            raise ValueError(msg)
        else:
            inside = slice(a - i, x - i), slice(b - j, y - j), slice(c - k, z - k)
        start = (a, b, c)
        return Source(
            self.array[(slice(None), *inside)], start, self.bounds, self.slope, self.intercept
        )


def resample(
    source: Source,
    matrix: Matrix,
    policy: Policy,
    out: NDArray[Any],
    stages: Lowered = NO_STAGES,
    *,
    epilogue: Epilogue | None = None,
    bfloat16: bool = False,
) -> None:
    """Sample ``source`` on an output grid, in place.

    Where ``policy.antialias`` is set, they are smoothed before, by what ``matrix`` leaves out.

    Parameters
    ----------
    source
        Stored voxels; at least ``source_region(matrix, out.shape[1:], bounds, policy)``.
        Nothing outside that region has any influence, however much more is given.
    matrix
        Pull-back, 3x4 or 4x4 float64: output index to *volume* index, voxel centres.
    policy
        Interpolation, padding and fill; its ``dtype`` is not used here.
    out
        (C, I, J, K), an integer or float type of any strides. Integers round half to even and
        saturate.
    stages
        Boxes outside which the output is ``policy.fill``, up to half a voxel from their last
        centres, and displacements; see ``SpatialPlan.lowered``. ``source`` then holds at least
        ``source_region(..., moves)`` with what ``stages.moves_of`` returns.
    epilogue
        A last step on the values, fill included.
    bfloat16
        Write bfloat16, for which NumPy has no type: ``out`` is then uint16 and gets the bits.

    Raises
    ------
    ValueError
        The shapes or types do not fit, or voxels that are needed are missing.

    Examples
    --------
    >>> ramp = np.arange(4, dtype=np.int16).reshape(1, 4, 1, 1)
    >>> half = np.eye(4)
    >>> half[0, 3] = 0.5
    >>> out = np.empty((1, 4, 1, 1), np.float32)
    >>> resample(Source(ramp, (0, 0, 0), Region.of_shape((4, 1, 1))), half, Policy(), out)
    >>> out.ravel().tolist()
    [0.5, 1.5, 2.5, 3.0]
    """
    matrix = np.asarray(matrix, dtype=np.float64)[:3]
    _check(source, matrix, out, bfloat16)
    shape = out.shape[1:]
    moves = moves_of(matrix, shape, stages)
    needed = source_region(matrix, shape, source.bounds, policy, moves)
    narrowed = _smoothed(source.narrow(needed), matrix, shape, policy, moves)
    is_affine = not any(stages)
    whole = whole_voxel_matrix(matrix, shape) if is_affine else None
    if whole is not None:
        TALLY.count(copies=1)
    else:
        TALLY.count(interpolations=1)
    if native.run(
        policy.mode if whole is None else "copy",
        narrowed,
        matrix if whole is None else whole,
        policy,
        out,
        stages,
        epilogue=epilogue,
        bfloat16=bfloat16,
    ):
        return
    target = out if epilogue is None and not bfloat16 else np.empty(out.shape, _real(out.dtype))
    if whole is not None:
        copy_voxels(narrowed, whole, policy, target)
    else:
        interpolate(narrowed, matrix, policy, target, stages)
    if target is not out:
        values = target if epilogue is None else epilogue.of(target)
        out[...] = bfloat16_bits(values) if bfloat16 else convert(values, out.dtype)


def _smoothed(
    source: Source, matrix: Matrix, shape: tuple[int, ...], policy: Policy, moves: Moves
) -> Source:
    """Return what is sampled: the voxels at hand, or smoothed where the policy asks for it."""
    sigma = sigmas(rows_of(matrix)) if policy.antialias else (0.0, 0.0, 0.0)
    if not any(map(reach, sigma)) or source.array.size == 0:
        return source
    plain = replace(policy, antialias=False)
    region = source_region(matrix, shape, source.bounds, plain, moves)
    return smoothed(source, region, sigma, policy.padding)


def _real(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the float type that holds every value of an output type, before the epilogue."""
    is_wide = dtype.itemsize > 4 or (dtype.kind != "f" and dtype.itemsize == 4)
    return np.dtype(np.float64 if is_wide else np.float32)


def _check(source: Source, matrix: Matrix, out: NDArray[Any], bfloat16: bool) -> None:
    if matrix.shape != (3, 4) or not np.isfinite(matrix).all():
        msg = f"a pull-back is a finite 3x4 or 4x4 matrix, got {matrix.tolist()}"
        raise ValueError(msg)
    if out.ndim != 4 or out.shape[0] != source.array.shape[0]:
        msg = f"out is (C, I, J, K) with C = {source.array.shape[0]}, got {out.shape}"
        raise ValueError(msg)
    if out.dtype.kind not in "iuf":
        msg = f"out is an integer or float array, got {out.dtype}"
        raise ValueError(msg)
    if bfloat16 and out.dtype != np.uint16:
        msg = f"the bits of bfloat16 go to a uint16 array, got {out.dtype}"
        raise ValueError(msg)
