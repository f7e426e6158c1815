"""The native resampling kernel (``native/interface.h``), tried before the slow path.

``interpolate`` and ``copy_voxels`` do the rest, and all of it without a compiler.
"""

from __future__ import annotations

import os
import struct
from dataclasses import astuple, dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...core import Region
from ...core.call_site import warn
from ...core.native_library import PATHS, level_of, native_level, native_library
from ...core.settings import NATIVE
from ..plans.policy import Policy
from ..plans.stages import NO_STAGES, Displacement, KernelStages, Stage

if TYPE_CHECKING:
    from ...intensity import Epilogue

# The fields of VoxpipeJob, eight bytes each; the comment names the last of each row.
_JOB = struct.Struct(
    "=3q"  # padding
    "4q3q3q3q3q3q"  # last
    "3q3q3q"  # out_stride
    "12d3d"  # fill
    "2q"  # clip_count
    "4q12d"  # control_matrix
    "4q12d"  # earlier_matrix
    "q4d"  # high
)
_MODES = {"copy": 0, "nearest": 1, "linear": 2, "cubic": 3}
_PADDINGS = {"border": 0, "reflection": 1, "constant": 2, "zeros": 3}
_TYPES = {
    np.dtype(name): code
    for code, name in enumerate(["u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"])
}
_OK = 0  # VoxpipeStatus
_NO_CONTROL = (0,) * 4 + (0.0,) * 12
_NO_EPILOGUE = (0, 1.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, eq=False)
class SourceVoxels:
    """Stored voxels, and their place in the volume."""

    array: NDArray[Any]
    """(C, i, j, k), any integer or float type, strides and byte order; read-only is fine."""
    start: tuple[int, int, int]  # volume index of ``array[:, 0, 0, 0]``
    bounds: Region
    """The voxels that count as volume, in volume indices; padding begins at its faces."""
    slope: float = 1.0  # a value is ``stored * slope + intercept``
    intercept: float = 0.0

    def narrow(self, region: Region) -> SourceVoxels:
        """Return the part inside ``region``, as a view; all of that must be at hand."""
        # Plain numbers: regions would take a third of the time of a small copy.
        (i, j, k), (a, b, c), (x, y, z) = self.start, region.start, region.stop
        _, size_i, size_j, size_k = self.array.shape
        inside = (slice(0, 0),) * 3
        if not region.is_empty:
            if a < i or b < j or c < k or x > i + size_i or y > j + size_j or z > k + size_k:
                have = Region.of_shape(self.array.shape[1:]).shift(self.start)
                raise ValueError(f"resampling needs {region}, but only {have} was read")
            inside = (slice(a - i, x - i), slice(b - j, y - j), slice(c - k, z - k))
        array = self.array[(slice(None), *inside)]
        return SourceVoxels(array, (a, b, c), self.bounds, self.slope, self.intercept)


def available() -> bool:
    """Whether resampling uses the native kernel."""
    # False with ``VOXPIPE_NATIVE=0``, or without the library, with one warning.
    return path() is not None


def path() -> str | None:
    """Return the name of the code in use, one of ``PATHS``; None where none is."""
    path_number = native_level()
    if path_number is None or (library := _library()) is None:
        return None
    best = int(library.voxpipe_best_path())
    return PATHS[(min(path_number, best) if path_number else best) - 1]


def run(
    mode: str,
    source: SourceVoxels,
    rows: tuple[float, ...],
    policy: Policy,
    out: NDArray[Any],
    stages: KernelStages = NO_STAGES,
    epilogue: Epilogue | None = None,
) -> bool:
    """Write ``out`` as ``resample`` says, or return False and leave ``out`` alone."""
    # ``source`` holds the needed voxels; ``mode`` is the policy's, or ``"copy"`` for whole rows.
    path_number = level_of(os.environ.get(NATIVE, ""))
    source_type, result = _TYPES.get(source.array.dtype), _TYPES.get(out.dtype)
    if path_number is None or source_type is None or result is None:
        return False
    if any(stages) and not stages.is_for_kernel:
        return False
    if source.array.size == 0 or out.size == 0:
        return False
    if (library := _library()) is None:
        return False
    boxes = None
    if stages.clips:
        clips = [[*clip.matrix[:3].ravel(), *clip.shape] for clip in stages.clips]
        boxes = np.array(clips, np.float64)
    channels, *size = source.array.shape
    channel_stride, *stride = source.array.strides
    out_channel_stride, *out_stride = out.strides
    a, b, c = source.bounds.stop
    at_source = source.array.__array_interface__["data"][0]
    at_out = out.__array_interface__["data"][0]
    job = _JOB.pack(
        *(path_number, _MODES[mode], _PADDINGS[policy.padding]),
        *(at_source, source_type, channels, channel_stride, *size, *stride),
        *(*source.start, *source.bounds.start, a - 1, b - 1, c - 1),
        *(at_out, result, out_channel_stride, *out.shape[1:], *out_stride),
        *(*rows, source.slope, source.intercept, policy.fill),
        *((0 if boxes is None else boxes.ctypes.data), len(stages.clips)),
        *(_NO_CONTROL if stages.displacement is None else _control(stages.displacement)),
        *(_control(stages.earlier[0]) if stages.earlier else _NO_CONTROL),
        *(_NO_EPILOGUE if epilogue is None else (1, *astuple(epilogue))),
    )
    return bool(library.voxpipe_run(job) == _OK)


def _control(displacement: Stage) -> tuple[Any, ...]:
    if not isinstance(displacement, Displacement):
        return _NO_CONTROL
    points = displacement.control
    return (points.ctypes.data, *points.shape[1:], *displacement.matrix[:3].ravel().tolist())


@cache
def _library() -> Any:
    """Return the loaded library, or None with a warning."""
    library, problem = native_library(["voxpipe_run"], numbers=["voxpipe_best_path"])
    if library is None:
        text = (
            f"resampling takes the slow path, because the native kernel is missing: {problem}. "
            "Install with a C++ compiler at hand, or run `make native` in a checkout; "
            "VOXPIPE_NATIVE=0 silences this."
        )
        warn(text, RuntimeWarning)
    return library
