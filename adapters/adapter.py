"""An adapter is a named list of rules that rewrites a graph before it runs.

Calling one is torchdata-compatible, ``adapter(pipe) -> pipe``; :meth:`Adapter.rewrite`
also returns changes and refusals. The given graph never changes, and a graph without
any change is returned as the same object.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from ..datapipes import PerItem
from ..graph import Pipe, RewriteResult, Rule, Traits, find, settle

T = TypeVar("T")


class Adapter:
    """Base of the adapters; a subclass names its rules, or rewrites the graph itself."""

    def rules(self) -> Sequence[Rule]:
        """Return the rules, tried in this order at each pipe until nothing changes.

        None, for an adapter that does its work in :meth:`rewrite`.
        """
        return ()

    def rewrite(self, pipe: Pipe) -> RewriteResult:
        """Return the graph after the rules, with their changes and refusals."""
        return settle(pipe, self.rules())

    def __call__(self, pipe: Pipe) -> Pipe:
        """Return the graph after the rules."""
        return self.rewrite(pipe).after

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class Annotation(PerItem):
    """A pipe that passes items on unchanged; its note is for services that run the graph."""

    traits: ClassVar[Any] = Traits(per_item=True, watches=True)

    def __init__(self, parent: Pipe, note: Any) -> None:
        super().__init__(parent)
        self.note = note

    def instructions(self) -> tuple[()]:
        return ()

    def apply(self, item: Any) -> Any:
        return item


def annotate(sink: Pipe, note: Any) -> RewriteResult:
    """Return the graph with a note of a class of its own at its end, unless it says that."""
    same = note_of(sink, type(note)) == note
    return RewriteResult(sink, sink if same else Annotation(sink, note))


def note_of(sink: Pipe, kind: Callable[[], T]) -> T:
    """Return the note of a class that is nearest to the end of a graph, or one of its defaults."""
    notes = [each.note for each in find(sink, Annotation) if type(each.note) is kind]
    return notes[-1] if notes else kind()
