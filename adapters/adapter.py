"""An adapter is a named list of rules that rewrites a graph before it runs.

Calling one is torchdata-compatible, ``adapter(pipe) -> pipe``; :meth:`Adapter.rewrite`
also tells what was done and what was refused. The graph that is given never changes,
and a graph with nothing to do comes back as the same object.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, TypeVar

from ..datapipes import PerItem
from ..graph import Pipe, Rewritten, Rule, Traits, find, settle


class Adapter:
    """Base of the adapters; a subclass names its rules, or rewrites the graph itself."""

    def rules(self) -> Sequence[Rule]:
        """Return the rules, tried in this order at each pipe until nothing changes.

        None, for an adapter that does its work in :meth:`rewrite`.
        """
        return ()

    def rewrite(self, pipe: Pipe) -> Rewritten:
        """Return the graph after the rules, with what they did and refused."""
        return settle(pipe, self.rules())

    def __call__(self, pipe: Pipe) -> Pipe:
        """Return the graph after the rules."""
        return self.rewrite(pipe).after

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


T = TypeVar("T")


class Annotation(PerItem, Generic[T]):
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
