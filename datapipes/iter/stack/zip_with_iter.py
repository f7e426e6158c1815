"""Join two pipes by key, as far as a buffer reaches."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable, Iterator
from typing import Any, ClassVar

from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes.utils.common import StreamWrapper

from ....core.whole import whole
from ....graph import Pipe, Traits
from ...datapipe import DataPipe, length_of, offered
from .columns import function

_ENDED = object()


@offered("zip_with_iter")
class IterKeyZipper(DataPipe):
    """Yield each item together with the item of another pipe that has the same key.

    Parameters
    ----------
    source_datapipe
        The parent, whose order is kept.
    ref_datapipe
        Where the other item comes from. It is read until a key matches; what is passed over is
        kept for later.
    key_fn, ref_key_fn
        Return the key of an item of the one and of the other pipe; the same function by default.
    keep_key
        Whether ``(key, merged)`` is yielded.
    buffer_size
        How many items of ``ref_datapipe`` are kept; None for all. If more were needed, the oldest
        are dropped, and a warning says so once in each pass.
    merge_fn
        Makes one item of two; a tuple by default.

    Raises
    ------
    TypeError
        If ``ref_datapipe`` is no iterable pipe.
    BufferError
        While iterating: no item has the key, or the one that had it was dropped.
    ValueError
        While iterating: two items that are kept have the same key.

    Examples
    --------
    >>> from operator import itemgetter
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> images = IterableWrapper([("a", "a.nii"), ("b", "b.nii")])
    >>> ages = IterableWrapper([("b", 61), ("a", 44)])
    >>> list(images.zip_with_iter(ages, key_fn=itemgetter(0)))
    [(('a', 'a.nii'), ('a', 44)), (('b', 'b.nii'), ('b', 61))]
    """

    traits: ClassVar[Traits] = Traits(opaque=True)

    def __init__(
        self,
        source_datapipe: Pipe,
        ref_datapipe: Any,
        key_fn: Callable[[Any], Hashable],
        ref_key_fn: Callable[[Any], Hashable] | None = None,
        keep_key: bool = False,
        buffer_size: int | None = 10000,
        merge_fn: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(ref_datapipe, IterDataPipe):
            msg = f"ref_datapipe must be a IterDataPipe, but its type is {type(ref_datapipe)}"
            raise TypeError(msg)
        self.parent = source_datapipe
        self.reference = ref_datapipe
        self.key_fn = function("key_fn", key_fn)
        self.ref_key_fn = key_fn if ref_key_fn is None else function("ref_key_fn", ref_key_fn)
        self.keep_key = keep_key
        self.buffer_size = (
            None if buffer_size is None else whole("buffer_size", buffer_size, least=1)
        )
        self.merge_fn = None if merge_fn is None else function("merge_fn", merge_fn)

    def __iter__(self) -> Iterator[Any]:
        """Yield the joined items."""
        kept: dict[Hashable, Any] = {}
        reference = iter(self.reference)
        warned = False
        try:
            for item in self.parent:
                key = self.key_fn(item)
                while key not in kept:
                    other = next(reference, _ENDED)
                    if other is _ENDED:
                        raise self._unmatched(item)
                    warned = self._keep(kept, other, warned)
                merged = self._merged(item, kept.pop(key))
                yield (key, merged) if self.keep_key else merged
        finally:
            for other in kept.values():
                StreamWrapper.close_streams(other)

    def _keep(self, kept: dict[Hashable, Any], other: Any, warned: bool) -> bool:
        """Keep an item that was not asked for; return whether a warning was given."""
        key = self.ref_key_fn(other)
        if key in kept:
            msg = f"Duplicate key is found in reference DataPipe: {key!r}"
            raise ValueError(msg)
        dropped = self.buffer_size is not None and len(kept) >= self.buffer_size
        if dropped:
            StreamWrapper.close_streams(kept.pop(next(iter(kept))))
            if not warned:
                text = "Buffer reaches the upper limit, so reference key-data pair begins to be "
                text += "removed from buffer in FIFO order. Please consider increase buffer size."
                warnings.warn(text, UserWarning, stacklevel=3)
        kept[key] = other
        return warned or dropped

    def _merged(self, item: Any, other: Any) -> Any:
        return (item, other) if self.merge_fn is None else self.merge_fn(item, other)

    def _unmatched(self, item: Any) -> BufferError:
        return BufferError(
            f"No matching key can be found from reference DataPipe for the data {item!r}. "
            "It has none, or it came earlier and was dropped: give a larger buffer_size=."
        )

    def __len__(self) -> int:
        """Return the parent's length."""
        return length_of(self, self.parent)
