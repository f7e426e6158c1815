"""Join a pipe with a map-style pipe by key."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, ClassVar

from torch.utils.data import MapDataPipe

from ....graph import Pipe, Traits
from ...datapipe import DataPipe, length_of
from ...forms import offered
from .columns import function


@offered("zip_with_map")
class MapKeyZipper(DataPipe):
    """Yield each item together with what a map-style pipe holds under its key.

    Parameters
    ----------
    source_iterdatapipe
        The parent.
    map_datapipe
        Where the other item is looked up.
    key_fn
        Returns the key of an item.
    merge_fn
        Makes one item of two; a tuple by default.
    keep_key
        Whether ``(key, merged)`` is yielded.

    Raises
    ------
    TypeError
        If ``map_datapipe`` is no map-style pipe.
    KeyError
        While iterating: it has nothing under a key.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> from voxpipe.datapipes.map import SequenceWrapper
    >>> ages = SequenceWrapper({"a.nii": 44, "b.nii": 61})
    >>> list(IterableWrapper(["b.nii", "a.nii"]).zip_with_map(ages, key_fn=str))
    [('b.nii', 61), ('a.nii', 44)]
    """

    traits: ClassVar[Traits] = Traits(opaque=True)

    def __init__(
        self,
        source_iterdatapipe: Pipe,
        map_datapipe: Any,
        key_fn: Callable[[Any], Hashable],
        merge_fn: Callable[[Any, Any], Any] | None = None,
        keep_key: bool = False,
    ) -> None:
        super().__init__()
        if not isinstance(map_datapipe, MapDataPipe):
            msg = f"map_datapipe must be a MapDataPipe, but its type is {type(map_datapipe)}"
            raise TypeError(msg)
        self.parent = source_iterdatapipe
        self.mapping = map_datapipe
        self.key_fn = function("key_fn", key_fn)
        self.merge_fn = None if merge_fn is None else function("merge_fn", merge_fn)
        self.keep_key = keep_key

    def __iter__(self) -> Iterator[Any]:
        """Yield the joined items."""
        for item in self.parent:
            key: Any = self.key_fn(item)
            try:
                other = self.mapping[key]
            except (KeyError, IndexError) as error:
                msg = f"key_fn maps {item!r} to {key!r}, which is not a valid key in the given "
                raise KeyError(msg + "MapDataPipe.") from error
            merged = (item, other) if self.merge_fn is None else self.merge_fn(item, other)
            yield (key, merged) if self.keep_key else merged

    def __len__(self) -> int:
        """Return the parent's length."""
        return length_of(self, self.parent)
