"""What is no mask is refused: shares of voxels, and images."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.errors import PatchSizeError

_MEANT = (
    " If they are labels all the same, or all of an image that is not 0 is meant: name them in "
    "open_volume(labels=), under a key of their own, or write vp.Volume(..., kind='label')."
)
MOST_VALUES = 64
"""How many values a mask may have that nobody called a label: a CT has hundreds in any slab, and
what people segment and forget to name as a label has some dozens of organs at most."""
# A label that was stored as bytes with a slope of 1/255 comes back as 1 to within rounding.
_WHOLE = 1e-4


def refuse_shares(volume: Any, values: NDArray[Any]) -> None:
    """Refuse what is no mask and no label: there is a way to draw by such values."""
    if values.dtype.kind != "f":
        return
    off = np.abs(values - np.rint(values)) > _WHOLE * np.maximum(1, np.abs(values))
    if off.any():
        first = float(values[tuple(np.argwhere(off)[0])])
        raise PatchSizeError(
            f"{volume.name} is given as mask=, of which every voxel that is not 0 counts alike, "
            f"and holds values that are no whole numbers, the first of them {first:g}",
            do="Give it as weights= if a voxel shall be drawn as often as its value says, or a "
            "mask of its values above a threshold.",
        )


def refuse_image(volume: Any, values: NDArray[Any], seen: set[int]) -> None:
    """Refuse an image, of which any voxel that is not 0 would count as inside.

    What nobody called a label is told by how many values it has, a label by how many below 0:
    there may be thousands of instances, and one or two numbers for what is to be ignored.
    ``seen`` has those of the slabs before, and gets those of this one.
    """
    is_label = volume.kind == "label"
    if is_label and values.dtype.kind == "u":
        return
    telling = _first_of_runs(values)
    telling = telling[telling < 0] if is_label else telling[telling != 0]
    if telling.dtype.kind == "f":
        telling = np.rint(telling[np.isfinite(telling)]).astype(np.int64)
    if seen:
        telling = telling[~np.isin(telling, list(seen))]
    seen.update(np.unique(telling).tolist())
    if len(seen) <= MOST_VALUES:
        return
    which = "below 0" if is_label else "other than 0"
    meant = "" if is_label else _MEANT
    raise PatchSizeError(
        f"{volume.name} is given as mask=, of which every voxel that is not 0 counts as inside, "
        f"and looks like an image: more than {MOST_VALUES} different values {which}, "
        f"{min(seen)} to {max(seen)} among them",
        do="Give a label, or a mask of its values above a threshold; or give it as weights= if "
        f"a voxel shall be drawn as often as its value says.{meant}",
    )


def _first_of_runs(values: NDArray[Any]) -> NDArray[Any]:
    """Return the first of each run of one value along the rows of memory, flat.

    They hold every value that there is, and masks have few of them.
    """
    axis = min((1, 2, 3), key=lambda axis: (values.shape[axis] == 1, abs(values.strides[axis])))
    rows = np.moveaxis(values, axis, -1)
    others = rows[..., 1:]
    return np.concatenate([rows[..., 0].ravel(), others[others != rows[..., :-1]]])
