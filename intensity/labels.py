"""Label ops: other numbers for the same classes, or a channel for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from ..core.errors import VolumeError
from ..core.validate import as_choice, entries_of, is_integer
from .value_op import Drawn, Facts, ValueOp

OTHERS = ("error", "drop")
_MOST_TOLD = 8  # a message is read by a person


@dataclass(frozen=True)
class OneHot(ValueOp):
    """A channel for every class, 1 where it is and 0 elsewhere, uint8.

    Commutes with spatial ops where labels are sampled as they are by default, ``"nearest"``.

    Examples
    --------
    >>> OneHot(3).describe(), OneHot((1, 4)).describe()
    ('one_hot of 0, 1, 2', 'one_hot of 1, 4')
    """

    classes: int | tuple[int, ...]
    """How many, from 0; or which labels, of which 0 may be left out."""
    others: Literal["error", "drop"] = "error"
    """What happens where a voxel has none of these: an error that names its label, or 0 in every
    channel."""

    name: ClassVar[str] = "one_hot"
    keeps_dtype: ClassVar[bool] = True
    kind: ClassVar[str] = "label"

    def __post_init__(self) -> None:
        labels = entries_of(self.classes)
        if isinstance(self.classes, int) and is_integer(self.classes):
            labels = tuple(range(self.classes))
        if not labels or not all(map(is_integer, labels)):
            msg = f"classes is a number above 0 or several labels, got {self.classes!r}"
            raise ValueError(msg)
        as_choice("others", self.others, OTHERS)
        object.__setattr__(self, "classes", tuple(map(int, labels)))

    def channels(self, count: int) -> int:
        """Return the number of classes.

        Raises
        ------
        VolumeError
            There is more than one channel.
        """
        if count != 1:
            raise VolumeError(
                f"one_hot is for a label of one channel, not of {count}",
                do="Choose one with select_channels(...).",
            )
        return len(entries_of(self.classes))

    def dtype(self, given: np.dtype[Any]) -> np.dtype[Any]:
        """Return uint8."""
        return np.dtype(np.uint8)

    def apply(self, array: NDArray[Any], drawn: Drawn, facts: Facts) -> NDArray[Any]:
        """Return a new array.

        Raises
        ------
        VolumeError
            A voxel has another label, and ``others`` is ``"error"``.
        """
        self.channels(array.shape[0])
        labels = np.array(entries_of(self.classes)).reshape(-1, 1, 1, 1)
        flags = array == labels
        if self.others == "error":
            self._refuse_others(array[0][~flags.any(axis=0)])
        result: NDArray[Any] = flags.view(np.uint8)
        return result

    def _refuse_others(self, values: NDArray[Any]) -> None:
        others = np.unique(values[values != 0])
        if others.size:
            told = ", ".join(map(str, others[:_MOST_TOLD].tolist()))
            known = ", ".join(map(str, entries_of(self.classes)))
            raise VolumeError(
                f"one_hot has channels for {known}, and a patch has {told}",
                do="Name all labels, one_hot((0, 2, 5)); bring them to 0, 1, 2 with remap_labels; "
                'or give others="drop".',
            )

    def describe(self) -> str:
        """Return the labels in words."""
        return f"{self.name} of {', '.join(map(str, entries_of(self.classes)))}"


@dataclass(frozen=True)
class RemapLabels(ValueOp):
    """Give labels other numbers; several may become one.

    Commutes with spatial ops where labels are sampled as they are by default, ``"nearest"``. What
    a patch has outside the volume is remapped too.

    Examples
    --------
    >>> RemapLabels({2: 1, 4: 1}).describe()
    'remap_labels 2 to 1, 4 to 1'
    """

    mapping: Any
    """Old label to new label."""
    other: int | None = None
    """What labels become that are not in ``mapping``; None: they stay."""

    name: ClassVar[str] = "remap_labels"
    keeps_dtype: ClassVar[bool] = True
    kind: ClassVar[str] = "label"

    def __post_init__(self) -> None:
        given = entries_of(self.mapping)
        if isinstance(self.mapping, Mapping):
            given = tuple(self.mapping.items())
        pairs = [entries_of(pair) for pair in given]
        numbers = [n for pair in pairs for n in pair]
        if self.other is not None and not is_integer(self.other):
            msg = f"other is an integer or None, got {self.other!r}"
            raise ValueError(msg)
        if not pairs or {len(pair) for pair in pairs} != {2} or not all(map(is_integer, numbers)):
            msg = f"mapping is {{old label: new label}}, of integers, got {self.mapping!r}"
            raise ValueError(msg)
        object.__setattr__(self, "mapping", tuple(sorted((int(a), int(b)) for a, b in pairs)))

    def dtype(self, given: np.dtype[Any]) -> np.dtype[Any]:
        """Return the type given, or a larger one where a new label does not fit into it."""
        new = [b for _, b in self.mapping] + ([] if self.other is None else [self.other])
        found = np.result_type(given, *(np.min_scalar_type(n) for n in (min(new), max(new))))
        # NumPy's common type of uint64 and a negative number is a float, which is no label.
        return np.dtype(np.int64) if found.kind == "f" and given.kind in "iu" else found

    def apply(self, array: NDArray[Any], drawn: Drawn, facts: Facts) -> NDArray[Any]:
        """Return a new array."""
        result = array.astype(self.dtype(array.dtype))
        if self.other is not None:
            result[...] = self.other
        for old, new in self.mapping:
            result[array == old] = new
        return result

    def describe(self) -> str:
        """Return the mapping in words."""
        told = ", ".join(f"{a} to {b}" for a, b in self.mapping)
        return f"{self.name} {told}{'' if self.other is None else f', others to {self.other}'}"
