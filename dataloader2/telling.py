"""What a loader tells of itself: figures and drawings."""

from __future__ import annotations

from typing import Any

from ..adapters import Profile
from ..diagnosing import Pace
from ..graph import Pipe, to_dot, to_mermaid
from .failed import Failed
from .position import Position
from .stats import Stats, Waits


class Telling:
    """The part of a loader that answers questions and changes nothing."""

    _graph: Pipe
    _whole: Pipe
    _adapters: Any
    _pace: Pace
    _waits: Waits
    _failed: Failed

    def _where(self) -> Position:
        raise NotImplementedError

    @property
    def datapipe(self) -> Pipe:
        """The last pipe of the chain as it runs: the loader's own copy, after the adapters.

        It is there to be looked at (``voxpipe.graph.walk(loader.datapipe)``). To change what runs,
        change your own chain or :attr:`~voxpipe.DataLoader2.adapters`.
        """
        return self._whole

    def stats(self) -> Stats:
        """Return what was delivered and waited for so far; print it, or take ``to_json()``.

        With ``Profile`` among the adapters it holds what each pipe did, too.
        """
        here = self._where()
        waits, profile = self._waits, self._profile()
        return Stats(
            epoch=here.epoch,
            next_batch=here.place.next,
            delivered=waits.delivered,
            waited=waits.seconds,
            longest=waits.longest,
            kept=self._pace.seconds(),
            failures=dict(self._failed.errors),
            pipes=() if profile is None else tuple(profile.to_json()),
        )

    def to_mermaid(self) -> str:
        """Return the graph as it runs, as a Mermaid flowchart."""
        return to_mermaid(self._graph)

    def to_dot(self) -> str:
        """Return the graph as it runs, in the DOT language of Graphviz."""
        return to_dot(self._graph)

    def _profile(self) -> Profile | None:
        return next((a for a in self._adapters if isinstance(a, Profile)), None)

    def profile(self) -> str:
        """Return the table of the ``Profile`` among the adapters."""
        profile = self._profile()
        if profile is not None:
            return profile.table()
        raise ValueError("this loader is not profiled; give it the adapter Profile()")
