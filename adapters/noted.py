"""A note on a graph: what an adapter says to whoever runs it, on the way to its sink."""

from __future__ import annotations

from typing import Any, ClassVar, Generic, TypeVar

from ..datapipes import PerItem
from ..graph import Pipe, Traits, find

T = TypeVar("T")


class Noted(PerItem, Generic[T]):
    """Passes items on as they are; a subclass for each kind of note.

    Parameters
    ----------
    parent
        The graph.
    note
        What is said of it.
    """

    traits: ClassVar[Any] = Traits(per_item=True, watches=True)

    def __init__(self, parent: Pipe, note: T) -> None:
        super().__init__(parent)
        self.note = note

    def instructions(self) -> tuple[()]:
        """Return nothing: whoever runs the graph reads the note."""
        return ()

    def apply(self, item: Any) -> Any:
        """Return the item as it is."""
        return item

    @classmethod
    def on(cls, sink: Pipe, default: T) -> T:
        """Return the note of this kind that is nearest to the sink, or ``default``."""
        found = find(sink, cls)
        return found[-1].note if found else default
