"""What each pipe costs: time, items, reads and bytes, over all processes."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

from ..core.ledger import LEDGER, Entry
from ..graph import (
    Pipe,
    Refused,
    Rewritten,
    Rule,
    Site,
    describe,
    origin_of,
    parents_of,
    settle,
    traits_of,
    walk,
    with_parents,
)
from .adapter import Adapter
from .timed import Timed

_MIB = 1024 * 1024


class Profile(Adapter):
    """Time every pipe, in every process, and merge what they did.

    ::

        lazy_patch                     lazy_patch
        batch_patches            →     timed
                                       batch_patches
                                       timed

    Keep the object and ask it after (or during) an epoch: :meth:`table` for a person,
    :meth:`to_json` for a program. Times are wall seconds in the pipe itself, summed over
    the processes that ran it.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> profile = Profile()
    >>> list(profile(IterableWrapper([1, 2]).map(str)))
    ['1', '2']
    >>> [row["items"] for row in profile.to_json()]
    [2, 2]
    """

    def __init__(self) -> None:
        self.id = uuid.uuid4().hex
        self._pipes: list[str] = []

    def rules(self) -> Sequence[Rule]:
        """Return the rule that wraps each edge that is not yet timed."""
        return (Rule("time pipes", self._untimed, self._timed_parents),)

    def rewrite(self, pipe: Pipe) -> Rewritten:
        """Return the graph with a timed pipe after each pipe, the sink included."""
        if isinstance(pipe, Timed):
            return Rewritten(pipe, pipe)
        self._pipes = [_name(p) for p in walk(pipe) if _is_timeable(p)]
        inner = settle(pipe, self.rules())
        if not _is_timeable(pipe):
            return inner
        return Rewritten(pipe, Timed(inner.after, self.id, _name(pipe)))

    def _untimed(self, site: Site) -> Site | Refused | None:
        # The reader of an edge is matched, not the pipe above it: that one would match
        # again once wrapped, and the rule would never settle.
        # Between torch's fork or demux and its children stands more than an iterator.
        if isinstance(site.pipe, Timed) or hasattr(type(site.pipe), "_is_child_datapipe"):
            return None
        return site if any(map(_is_timeable, parents_of(site.pipe))) else None

    def _timed_parents(self, site: Site) -> Pipe:
        parents = [
            Timed(p, self.id, _name(p)) if _is_timeable(p) else p for p in parents_of(site.pipe)
        ]
        return with_parents(site.pipe, parents)

    def entries(self) -> list[tuple[str, Entry]]:
        """Return what each pipe did so far, in the order of the graph."""
        known = LEDGER.of(self.id)
        return [(name, known.get(name, Entry())) for name in dict.fromkeys(self._pipes)]

    def to_json(self) -> list[dict[str, Any]]:
        """Return one dict per pipe: pipe, items, seconds and the counts of a Tally."""
        return [
            {"pipe": name, "items": e.items, "seconds": e.seconds, **e.tally.to_json()}
            for name, e in self.entries()
        ]

    def table(self) -> str:
        """Return the profile as text, one line per pipe."""
        head = ("pipe", "items", "seconds", "share", "reads", "MiB", "interpolations")
        total = sum(e.seconds for _, e in self.entries()) or 1.0
        rows = [head] + [
            (
                name,
                str(e.items),
                f"{e.seconds:.2f}",
                f"{e.seconds / total:.0%}",
                str(e.tally.reads),
                f"{e.tally.bytes_read / _MIB:.1f}",
                str(e.tally.interpolations),
            )
            for name, e in self.entries()
        ]
        widths = [max(len(row[n]) for row in rows) for n in range(len(head))]
        return "\n".join(
            "  ".join(
                cell.ljust(w) if n == 0 else cell.rjust(w)
                for n, (cell, w) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        )

    def reset(self) -> None:
        """Forget what was counted."""
        LEDGER.forget(self.id)


def _is_timeable(pipe: Pipe) -> bool:
    # Timers and limits only watch: what they cost is not the user's.
    return not traits_of(pipe).watches


def _name(pipe: Pipe) -> str:
    origin = origin_of(pipe)
    place = f"   {origin.file.rsplit('/', 1)[-1]}:{origin.line}" if origin is not None else ""
    return f"{describe(pipe)}{place}"
