"""An adapter is a named list of rules that rewrites a graph before it runs.

Calling one is torchdata-compatible, ``adapter(pipe) -> pipe``; :meth:`Adapter.rewrite`
also tells what was done and what was refused. The graph that is given never changes,
and a graph with nothing to do comes back as the same object.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..graph import Pipe, Rewritten, Rule, settle


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
