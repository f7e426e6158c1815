"""The sampling policy of a kind of volume: interpolation, padding, fill, type of the result.

A policy belongs to the *kind* of a volume (intensity or label), and not to an op.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import numpy as np

from ...core.errors import PolicyConflict
from ...core.suggest import FOREIGN_MODES, FOREIGN_PADDINGS
from ...core.validate import FieldChecks, as_choice, as_flag, is_number, or_none

Mode = Literal["linear", "nearest", "cubic"]
"""Interpolation of values between voxel centres."""
Padding = Literal["border", "reflection", "constant", "zeros"]
"""Value of a coordinate outside the volume."""

Antialias = bool | Literal["level"]
"""Whether to smooth before downsampling; ``"level"`` may read a smoothed level instead."""

LEVEL = "level"
MODES: tuple[str, ...] = ("linear", "nearest", "cubic")
PADDINGS: tuple[str, ...] = ("border", "reflection", "constant", "zeros")


def _as_fill(name: str, value: Any) -> float:
    if not is_number(value):
        raise ValueError(f"{name} is a number, got {value!r}")
    return float(value)


def _as_result_type(name: str, value: Any) -> np.dtype[Any]:
    try:
        dtype: np.dtype[Any] = np.dtype(value)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "iuf":
        raise ValueError(f"{name} is an integer or float type, got {value!r}")
    return dtype.newbyteorder("=")


def _as_antialias(name: str, value: Any) -> bool | str:
    if not isinstance(value, str):
        return as_flag(name, value)
    if value != LEVEL:
        raise ValueError(f"{name} is False, True or {LEVEL!r}, got {value!r}")
    return value


@dataclass(frozen=True)
class Policy(FieldChecks):
    """Sampling of the voxels of one volume.

    Examples
    --------
    >>> Policy("linear", "constant", fill=-1024)
    Policy(mode='linear', padding='constant', fill=-1024.0, dtype=None, antialias=False)
    """

    mode: Mode = "linear"
    """``"linear"``, ``"nearest"`` (half to even), or ``"cubic"``: cubic convolution through the
    samples (Keys 1981, a = -1/2), which may exceed their range."""
    padding: Padding = "border"
    """Outside the volume: ``"border"`` repeats the last voxel. ``"reflection"`` mirrors about the
    outer face of the last voxel. ``"constant"`` gives ``fill`` beyond half a voxel, and clamps
    before. ``"zeros"`` blends each tap outside with zero, as torch's ``grid_sample`` does."""
    fill: float = 0.0
    """Value outside the volume and hard crops, after slope and intercept and earlier value ops."""
    dtype: np.dtype[Any] | None = None
    """Type of the result; None: stored type where nothing is interpolated, else float32."""
    antialias: Antialias = False
    """Whether to smooth before the chain's total downsampling (``downsampling``). ``"level"`` also
    reads from the coarsest level that is fine enough (``levels``). Not for nearest, which takes one
    voxel as is."""

    checks: ClassVar[Any] = {
        "mode": partial(as_choice, choices=MODES, words=FOREIGN_MODES),
        "padding": partial(as_choice, choices=PADDINGS, words=FOREIGN_PADDINGS),
        "fill": _as_fill,
        "dtype": or_none(_as_result_type),
        "antialias": _as_antialias,
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        kind = "" if self.dtype is None else self.dtype.kind
        if kind in ("i", "u") and not math.isfinite(self.fill):
            raise ValueError(f"fill={self.fill:g} is no number of the type {self.dtype}")
        if self.antialias and self.mode == "nearest":
            msg = f"antialias={self.antialias!r} smooths before interpolating, and mode='nearest' "
            raise ValueError(f"{msg}does not do that")


def refuse_fill(fill: float, dtype: np.dtype[Any], name: str) -> None:
    """Raise PolicyConflict where an integer type cannot hold the fill that a user asked for."""
    limits = np.iinfo(dtype)
    if not limits.min <= fill <= limits.max:
        msg = f"fill={fill:g} does not fit into the {dtype} of {name}, which is from "
        do = 'Give a number that does, or a type that holds it: dtype="float32".'
        raise PolicyConflict(f"{msg}{limits.min} to {limits.max}", do=do)


INTENSITY = Policy("linear", "border")
"""Linear; the last voxel repeats outside."""
LABEL = Policy("nearest", "constant", 0.0)
"""Nearest, background outside: no label appears that was not stored."""
