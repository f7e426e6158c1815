"""The native resampling kernel (``native/job.h``), asked before the slow path.

What the kernel does not do, or an installation without a compiler does not have, is left to
``interpolate`` and ``copy_voxels``.
"""

from __future__ import annotations

import struct
from dataclasses import astuple
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...core.call_site import WarnOnce
from ...core.native_library import PATHS, native_library, requested_path
from ..plans.policy import Policy
from ..plans.stages import NO_STAGES, Displacement, KernelStages, Stage

if TYPE_CHECKING:
    from ...intensity import Epilogue
    from .interpolate import Source

ABI = 2  # VOXPIPE_ABI of native/job.h
# The fields of VoxpipeJob, eight bytes each; the comment names the last of each row.
_JOB = struct.Struct(
    "=4q"  # padding
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
_BFLOAT16 = 11
_DONE, _UNSUPPORTED, _BAD_JOB, _NO_MEMORY = range(4)
_TOLD = WarnOnce()
_NO_CONTROL = (0,) * 4 + (0.0,) * 12
_NO_EPILOGUE = (0, 1.0, 0.0, 0.0, 0.0)


def available() -> bool:
    """Whether resampling uses the native kernel."""
    # False where ``VOXPIPE_NATIVE=0`` or where the library was not built, which is said once, in a
    # warning.
    return requested_path() is not None and _library() is not None


def path() -> str | None:
    """Return the name of the code in use, ``"avx512"``, ``"avx2"`` or ``"portable"``, or None."""
    library, requested = _library(), requested_path()
    if library is None or requested is None:
        return None
    best = int(library.voxpipe_best_path())
    return PATHS[(min(requested, best) if requested else best) - 1]


def run(
    mode: str,
    source: Source,
    matrix: NDArray[Any],
    policy: Policy,
    out: NDArray[Any],
    stages: KernelStages = NO_STAGES,
    *,
    epilogue: Epilogue | None = None,
    bfloat16: bool = False,
) -> bool:
    """Write ``out`` as ``resample`` says, or return False and leave ``out`` alone."""
    # ``source`` holds exactly the voxels needed; ``mode`` is that of the policy, or ``"copy"``
    # where ``matrix`` is whole.
    requested = requested_path()
    stored, result = _TYPES.get(source.array.dtype), _TYPES.get(out.dtype)
    result = _BFLOAT16 if bfloat16 else result
    if requested is None or stored is None or result is None:
        return False
    if any(stages) and not stages.is_for_kernel:
        return False
    if source.array.size == 0 or out.size == 0 or (library := _library()) is None:
        return False
    clips = [[*clip.matrix[:3].ravel(), *clip.shape] for clip in stages.clips]
    boxes = np.array(clips, np.float64) if clips else None
    channels, *size = source.array.shape
    channel_stride, *stride = source.array.strides
    out_channel_stride, *out_stride = out.strides
    job = _JOB.pack(
        *(ABI, requested, _MODES[mode], _PADDINGS[policy.padding]),
        *(source.array.ctypes.data, stored, channels, channel_stride, *size, *stride),
        *(*source.start, *source.bounds.start, *(n - 1 for n in source.bounds.stop)),
        *(out.ctypes.data, result, out_channel_stride, *out.shape[1:], *out_stride),
        *(*matrix.ravel().tolist(), source.slope, source.intercept, policy.fill),
        *((0 if boxes is None else boxes.ctypes.data), len(stages.clips)),
        *(_NO_CONTROL if stages.displacement is None else _control(stages.displacement)),
        *(_control(stages.earlier[0]) if stages.earlier else _NO_CONTROL),
        *(_NO_EPILOGUE if epilogue is None else (1, *astuple(epilogue))),
    )
    status = library.voxpipe_run(job)
    if status == _BAD_JOB:
        shapes = f"source {source.array.shape}, out {out.shape}"
        raise RuntimeError(f"the native kernel refused a job of {shapes}")
    return bool(status == _DONE)


def _control(displacement: Stage) -> tuple[Any, ...]:
    if not isinstance(displacement, Displacement):
        return _NO_CONTROL
    points = displacement.control
    return (points.ctypes.data, *points.shape[1:], *displacement.matrix[:3].ravel().tolist())


def _library() -> Any:
    """Return the loaded library, or None, having said so."""
    library, problem = _found()
    if library is None:
        _TOLD.warn(
            "native",
            f"resampling takes the slow path, because the native kernel is missing: {problem}. "
            "Install with a C++ compiler at hand, or run `make native` in a checkout; "
            "VOXPIPE_NATIVE=0 silences this.",
            RuntimeWarning,
        )
    return library


@cache
def _found() -> tuple[Any, str]:
    return native_library(
        ["voxpipe_run"], version="voxpipe_abi", expected=ABI, numbers=["voxpipe_best_path"]
    )
