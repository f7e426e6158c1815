"""A map-style pipe of key and value pairs that a pipe yields."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

from torch.utils.data import IterDataPipe

from ....core.origin import warn
from ...datapipe import length_of
from ...forms import offered
from ..items.columns import function
from .pipe import MapPipe


@offered("to_map_datapipe", to=IterDataPipe)
class IterToMapConverter(MapPipe):
    """Hold the items of a pipe by key; they are loaded when the first one is asked for.

    Parameters
    ----------
    datapipe
        The pipe to go through, once.
    key_value_fn
        Returns key and value of an item; without it every item is such a pair. Of a key that
        comes twice the later value holds, and a warning says so.

    Raises
    ------
    TypeError
        If ``datapipe`` is no iterable pipe; at the first access: an item is no pair.
    ValueError
        At the first access: it has more or less than two parts.
    IndexError
        At an access: there is nothing under this key.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> ages = IterableWrapper([("a.nii", 44), ("b.nii", 61)]).to_map_datapipe()
    >>> ages["b.nii"], len(ages)
    (61, 2)
    """

    running = ("_map",)
    _map: dict[Hashable, Any] | None

    def __init__(
        self,
        datapipe: Any,
        key_value_fn: Callable[[Any], tuple[Hashable, Any]] | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(datapipe, IterDataPipe):
            msg = f"IterToMapConverter can only apply on IterDataPipe, but found {type(datapipe)}"
            raise TypeError(msg)
        self.parent = datapipe
        self.key_value_fn = None if key_value_fn is None else function("key_value_fn", key_value_fn)
        self.fresh()

    def fresh(self) -> None:
        """Begin with nothing loaded."""
        self._map = None

    def _load_map(self) -> dict[Hashable, Any]:
        loaded: dict[Hashable, Any] = {}
        for item in self.parent:
            pair = item if self.key_value_fn is None else self.key_value_fn(item)
            try:
                parts = len(pair)
            except TypeError:
                msg = f"Cannot convert dictionary update element {type(pair)} ({pair}) to a pair"
                raise TypeError(msg) from None
            if parts != 2:
                msg = f"dictionary update sequence element has length {parts}, 2 is required"
                raise ValueError(msg)
            key, value = pair
            if key in loaded:
                text = f"Found duplicate key {key!r}. Please check your `key_value_fn`"
                warn(text, UserWarning, self.origin)
            loaded[key] = value
        self._map = loaded
        return loaded

    def __getitem__(self, index: Any) -> Any:
        """Return the value under a key."""
        loaded = self._load_map() if self._map is None else self._map
        try:
            return loaded[index]
        except KeyError:
            msg = f"Index {index!r} is invalid for IterToMapConverter"
            raise IndexError(msg) from None

    def __len__(self) -> int:
        """Return the number of keys; loads them, with a warning, if the pipe has no length."""
        if self._map is not None:
            return len(self._map)
        try:
            return length_of(self, self.parent)
        except TypeError:
            text = "Data from prior DataPipe are loaded to get length of IterToMapConverter before "
            warn(text + "execution of the pipeline. Please consider removing len().", UserWarning)
            return len(self._load_map())
