"""Pipes of whole batches: labels at several scales, and a fill outside of a mask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..batching.batch_steps import FillOutside, Scale, ScaleLabels
from ..batching.job import apply_transforms
from ..core.validate import (
    as_count,
    as_flag,
    as_keys,
    as_number,
    entries_of,
    is_integer,
    is_number,
)
from ..graph import Pipe
from .datapipe import PerItem, chained_form, locate_errors


@chained_form("deep_supervision")
class DeepSupervision(PerItem):
    """Put a list of labels at several scales in the place of the labels of a batch.

    For networks with outputs at several resolutions: nnU-Net's deep supervision. Nothing is read
    again: each scale takes the voxels in the middles of its larger ones. Put it after
    ``batch_patches``, and after pipes that change labels.

    Parameters
    ----------
    scales
        For each output of the network, the finest first, the part that its grid has of the
        patch's: a number from above 0 to 1, or one for each axis. ``(1, 0.5, 0.25)``
    keys
        The labels, each of which becomes a list of tensors.

    Raises
    ------
    SampleError
        It comes before ``batch_patches()``, or there is no such key.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> pipe = from_cases([{"label": np.zeros((8, 8, 4), np.uint8)}]).open_volume().batch_patches(1)
    >>> batch = next(iter(pipe.deep_supervision((1, (0.5, 0.5, 1)))))
    >>> [tuple(one.shape) for one in batch["label"]]
    [(1, 1, 8, 8, 4), (1, 1, 4, 4, 4)]
    """

    def __init__(
        self,
        parent: Pipe,
        scales: Sequence[float | Sequence[float]],
        keys: str | Sequence[str] = "label",
    ) -> None:
        super().__init__(parent)
        with locate_errors(self):
            each = tuple(map(_as_scale, entries_of(scales)))
            if not each:
                msg = "scales is a number from above 0 to 1 for each output, or three, got "
                raise ValueError(f"{msg}{scales!r}")
            names = as_keys("deep_supervision(keys=)", keys)
        self.step = ScaleLabels(each, names, self.origin)

    is_drawn = False

    def instructions(self) -> tuple[ScaleLabels, ...]:
        return (self.step,)

    def apply(self, item: Any) -> Any:
        return apply_transforms(self.instructions(), item)


def _as_scale(value: Any) -> Scale:
    parts = entries_of(value) or (value,) * 3
    if len(parts) != 3 or not all(is_number(part) and 0 < part <= 1 for part in parts):
        msg = "a scale is a number from above 0 to 1, or one for each of three axes, got "
        raise ValueError(f"{msg}{value!r}")
    i, j, k = map(float, parts)
    return (i, j, k)


@chained_form("fill_outside")
class FillOutsidePipe(PerItem):
    """Fill volumes of a batch outside of its mask.

    For volumes normalized inside of a mask, which must be 0 outside after any op: nnU-Net's
    ``use_mask_for_norm``. Put it after ``batch_patches``.

    Parameters
    ----------
    keys
        The volumes that are filled.
    mask
        Key of the mask. A voxel is outside where all of its channels are ``outside``.
    outside
        The value of the mask outside.
    fill
        The new value of voxels outside.
    channels
        Which channels are filled; by default all.
    keep_mask
        Whether the batch keeps the mask.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> case = {"image": np.ones((1, 1, 3), np.float32), "label": np.array([[[-1, 0, 2]]], np.int8)}
    >>> pipe = from_cases([case]).open_volume().batch_patches(1)
    >>> next(iter(pipe.fill_outside("image", mask="label", outside=-1)))["image"].flatten().tolist()
    [0.0, 1.0, 1.0]
    """

    def __init__(
        self,
        parent: Pipe,
        keys: str | Sequence[str],
        *,
        mask: str,
        outside: int = 0,
        fill: float = 0.0,
        channels: Sequence[int] | None = None,
        keep_mask: bool = True,
    ) -> None:
        super().__init__(parent)
        with locate_errors(self):
            names = as_keys("fill_outside(keys=)", keys)
            (key,) = as_keys("fill_outside(mask=)", [mask])
            value = as_number("fill", fill)
            if not is_integer(outside):
                raise ValueError(f"outside is the label of the mask that says so, got {outside!r}")
            if channels is not None:
                channels = tuple(as_count("channels", n) for n in entries_of(channels))
            keeps = as_flag("keep_mask", keep_mask)
        fill_with = value or 0.0
        self.step = FillOutside(names, key, int(outside), fill_with, channels, keeps, self.origin)

    is_drawn = False

    def instructions(self) -> tuple[FillOutside, ...]:
        return (self.step,)

    def apply(self, item: Any) -> Any:
        return apply_transforms(self.instructions(), item)
