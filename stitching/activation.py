"""Result of the blended output of a model: classes, shares, or the numbers themselves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from ..core import Region
from ..core.convert_dtype import convert_dtype
from ..core.errors import SampleError
from ..core.validate import FieldChecks, as_choice

OUTPUTS = ("argmax", "softmax", "sigmoid", "logits")


@dataclass(frozen=True)
class Activation(FieldChecks):
    """Conversion of the blended output of a model, voxel by voxel.

    Examples
    --------
    >>> voxels = np.array([0.0, 3.0, 1.0], np.float32).reshape(3, 1, 1, 1)
    >>> Activation("argmax").of(voxels).item()
    1
    """

    output: str
    """One of ``OUTPUTS``."""
    dtype: np.dtype[Any] | None = None
    """Type of the result; None: uint8, uint16 or uint32 for labels, by their number, or float32."""

    checks: ClassVar[Any] = {"output": partial(as_choice, choices=OUTPUTS)}

    @property
    def kind(self) -> str:
        """The kind of the volume that it makes."""
        return "label" if self.output == "argmax" else "intensity"

    @property
    def before_resampling(self) -> Activation:
        """Conversion before a resample that interpolates."""
        first = "softmax" if self.output == "argmax" else self.output
        return Activation(first, np.dtype(np.float32))

    @property
    def after_resampling(self) -> Activation:
        """Conversion after that resample."""
        return self if self.output == "argmax" else Activation("logits", self.dtype)

    def channels(self, count: int) -> int:
        """Return how many channels the result has."""
        return 1 if self.output == "argmax" else count

    def dtype_of(self, count: int) -> np.dtype[Any]:
        """Return the type of the result for a number of channels of the model."""
        if self.dtype is not None:
            if self.output == "argmax" and _largest_whole(self.dtype) < count - 1:
                msg = f"dtype={str(self.dtype)!r} cannot hold the labels of {count} classes"
                raise ValueError(f"{msg}: give a larger one, or none")
            return self.dtype
        if self.output != "argmax":
            return np.dtype(np.float32)
        return np.min_scalar_type(count - 1)

    def of(self, voxels: NDArray[Any]) -> NDArray[Any]:
        """Return the result for the blended output (C, I, J, K)."""
        dtype = self.dtype_of(voxels.shape[0])
        if self.output == "argmax":
            return _argmax(voxels, dtype)
        if self.output == "softmax":
            with np.errstate(invalid="ignore"):  # of infinite numbers shares are NaN
                voxels = np.exp(voxels - voxels.max(axis=0, keepdims=True))
            voxels /= voxels.sum(axis=0, keepdims=True)
        elif self.output == "sigmoid":
            with np.errstate(over="ignore"):  # 1 / (1 + inf) is 0
                voxels = 1 / (1 + np.exp(-voxels))
        return voxels if voxels.dtype == dtype else convert_dtype(voxels, dtype)


def _largest_whole(dtype: np.dtype[Any]) -> int:
    """Return up to which whole number a type holds each."""
    if dtype.kind == "b":
        return 1
    return int(np.iinfo(dtype).max) if dtype.kind in "iu" else 2 ** (np.finfo(dtype).nmant + 1)


def _argmax(voxels: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the first of the largest channels (1, I, J, K), as NumPy does."""
    # Channel by channel: NumPy gathers the channels of each voxel first, which takes longer.
    kind = np.min_scalar_type(voxels.shape[0] - 1)
    labels: NDArray[Any] = np.zeros((1, *voxels.shape[1:]), kind)
    largest = voxels[0].copy()
    for channel, values in enumerate(voxels[1:], 1):
        # Channels only grow: where this one is larger, its number is larger than the one there.
        np.maximum(labels[0], (values > largest) * kind.type(channel), out=labels[0])
        np.maximum(largest, values, out=largest)
    if np.isnan(largest).any():
        # Windows without NaN gave it: infinities of both signs, or shares of one.
        msg = "no class is the largest: what was blended of infinite numbers of the model is NaN"
        raise SampleError(msg, do="Let it give finite numbers; float16 ends at 65504.")
    classes: NDArray[Any] = labels.astype(dtype, copy=False)
    return classes


class ActivatedOutput:
    """Converts blended voxels to classes or shares for an output."""

    def __init__(self, output: Any, activation: Activation) -> None:
        self._output, self._activation = output, activation

    def begin(self, channels: int) -> None:
        """Set the number of channels of the model."""
        own = self._activation
        if own.output == "argmax" and channels == 1:
            msg = "the model gives one channel, whose argmax is 0 everywhere"
            do = 'Give output="sigmoid" or "logits", or let it give a channel for each class.'
            raise SampleError(msg, do=do)
        self._shape = own.channels(channels), own.dtype_of(channels)
        self._output.begin(*self._shape)

    def write(self, region: Region, voxels: NDArray[np.float32]) -> None:
        """Write the result for a box of blended voxels."""
        self._output.write(region, self._activation.of(voxels))

    def write_zeros(self, region: Region) -> None:
        """Write 0 to a box without windows."""
        self._output.write(region, np.zeros((self._shape[0], *region.shape), self._shape[1]))
