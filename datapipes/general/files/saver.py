"""Write data to files on the local disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ....core.errors import placed
from ....graph import Pipe, Traits
from ...datapipe import PerItem
from ...forms import offered
from .streams import length_or_type_error, pair_of
from .written import write_whole


def checked_mode(mode: str) -> str:
    """Return a mode of writing: ``"w"`` is added to ``"b"`` or ``"t"``.

    Examples
    --------
    >>> checked_mode("b")
    'wb'
    """
    full = mode if "w" in mode else f"w{mode}"
    if sorted(full) not in (["w"], ["b", "w"], ["t", "w"]):
        msg = f"mode is 'w', 'wt' or 'wb', got {mode!r}"
        raise ValueError(msg)
    return full


@offered("save_to_disk")
class Saver(PerItem):
    """Write the data of each ``(name, data)`` to a file and yield its path.

    A file appears whole, under its name, or not at all; folders are made. What is there is
    replaced.

    Parameters
    ----------
    parent
        Yields ``(name, data)``: bytes, text (written as UTF-8), or an open file, which is copied in
        pieces and closed.
    mode
        ``"w"``, ``"wt"`` or ``"wb"``. What the data are decides; it is here for torchdata's sake.
    filepath_fn
        Makes the path of the name; by default the name is the path.

    Raises
    ------
    ValueError
        At construction: another mode.
    SampleError
        The parent yields something else than pairs, or what cannot be written.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper([("out/1.txt", b"one")]).save_to_disk(mode="wb"))
    ['out/1.txt']
    """

    def __init__(
        self, parent: Pipe, mode: str = "w", filepath_fn: Callable[[Any], Any] | None = None
    ) -> None:
        super().__init__(parent)
        self.mode = checked_mode(mode)
        self.filepath_fn = filepath_fn

    @property
    def traits(self) -> Traits:
        """Yields paths; may run a function."""
        return Traits(per_item=True, plain=True, opaque=self.filepath_fn is not None)

    def apply(self, item: Any) -> Any:
        """Write one file and return its path."""
        name, data = pair_of(self, item)
        path = name if self.filepath_fn is None else self.filepath_fn(name)
        try:
            write_whole(os.fspath(path), data)
        except Exception as error:
            raise placed(error, self.origin)  # noqa: B904  the very same error
        return path

    def __len__(self) -> int:
        """Return the length of the parent."""
        return length_or_type_error(self, self.parent)
