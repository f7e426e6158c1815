"""What a state says of the chain and the cases it belongs to: enough to name what differs.

Two hashes decide whether a state belongs to a loader. A name and a short hash for each pipe, and
a hash for each of a few dozen runs of cases, are there to say where a foreign one differs. They
are bounded, so that a state stays small whatever the chain and the data.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest

from ..core.errors import StateMismatch
from ..core.lru_cache import cached_property
from ..graph import (
    Pipe,
    chained_name,
    describe,
    fingerprint,
    fingerprint_of_pipe,
    origin_of,
    walk,
)

# About 20 bytes each: 2 kB of the 4 that a state may have.
MOST_PIPES = 100
# Four bytes each.
MOST_RUNS = 64

_DO_CHAIN = (
    "Settings and order of the pipes must be the same, and the public attributes of objects in "
    "them; attributes whose names begin with an underscore may differ."
)
_DO_CASES = "The list of cases must be the same, in the same order."


@dataclass(frozen=True)
class Outline:
    """What is told of a chain and its cases.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> outline = Outline.of(IterableWrapper([1]).shuffle())
    >>> [entry.split(":")[0] for entry in outline.pipes.split()]
    ['IterableWrapper', 'shuffle']
    """

    sink: Pipe
    """The last pipe, as the user wrote it."""
    graph: str
    """Hash of the chain."""
    pipes: str
    """Name and short hash of the first pipes, sources first."""

    @classmethod
    def of(cls, sink: Pipe) -> Outline:
        """Return what is told of a chain as it is now; objects in it may change as they run."""
        first = islice(walk(sink), MOST_PIPES)
        pipes = " ".join(f"{chained_name(pipe)}:{fingerprint_of_pipe(pipe)}" for pipe in first)
        return cls(sink, fingerprint(sink), pipes)

    @cached_property
    def data(self) -> str:
        """Hash of the cases; makes the list, and opens none."""
        hashes = [p.data_hash() for p in walk(self.sink) if hasattr(type(p), "data_hash")]
        return hashlib.blake2b("".join(hashes).encode(), digest_size=8).hexdigest()

    @cached_property
    def cases(self) -> str:
        """How many cases there are, and a short hash of each run of them; empty if unknown."""
        count = sum(1 for _ in self._texts())
        return "" if not count else _in_runs(self._texts(), count, -(-count // MOST_RUNS))

    def _texts(self) -> Iterator[str]:
        for pipe in walk(self.sink):
            if hasattr(type(pipe), "data_texts"):
                yield from pipe.data_texts()

    def refuse(self, graph: str, data: str, pipes: str, cases: str) -> None:
        """Raise unless a state is of this chain and these cases.

        Raises
        ------
        StateMismatch
            Naming the pipe, or the cases.
        """
        if graph != self.graph:
            msg = f"the state was saved for graph {graph}, this one is {self.graph}"
            what, pipe = self._difference(pipes)
            error = StateMismatch(f"{msg}: {what}" if what else msg, do=_DO_CHAIN)
            raise error.at(None if pipe is None else origin_of(pipe))
        if data != self.data:
            msg = f"the state was saved for data {data}, these are {self.data}"
            what = self._other_cases(cases)
            raise StateMismatch(f"{msg}: {what}" if what else msg, do=_DO_CASES)

    def _difference(self, saved: str) -> tuple[str, Pipe | None]:
        """Return in what pipe the chains begin to differ; nothing if the state does not know."""
        own = zip(self.pipes.split(), walk(self.sink), strict=False)
        pairs = zip_longest(saved.split(), own) if saved else ()
        for number, (theirs, mine) in enumerate(pairs):
            if mine is None:
                return f"pipe {number}, {_name(theirs)}, is not there any more", None
            entry, pipe = mine
            if theirs is None:
                return f"{describe(pipe)} was not there", pipe
            if _name(theirs) != _name(entry):
                return f"pipe {number} was {_name(theirs)} and is {describe(pipe)}", pipe
            if theirs != entry:
                return f"{describe(pipe)} (pipe {number}) had other settings", pipe
        return ("the same pipes are connected in another way" if saved else ""), None

    def _other_cases(self, saved: str) -> str:
        """Return where the lists of cases begin to differ; nothing if the state does not know."""
        try:
            count, size, hashes = saved.split("/")
            runs = _in_runs(self._texts(), int(count), int(size)).split("/")[2]
        except ValueError:  # an older state, or one without cases
            return ""
        texts = list(self._texts())
        told = (
            [] if len(texts) == int(count) else [f"there were {count} cases, and are {len(texts)}"]
        )
        places = range(0, max(len(hashes), len(runs)), _DIGITS)
        run = next((n for n in places if hashes[n : n + _DIGITS] != runs[n : n + _DIGITS]), None)
        if run is not None:
            first = run // _DIGITS * int(size)
            last = min(first + int(size), len(texts)) - 1
            of = f"case {first}" if last <= first else f"one of the cases {first} to {last}"
            now = f", now {texts[first]}" if last == first else ""
            told.append(f"the first that differs is {of}{now}")
        return "; ".join(told)


_DIGITS = 4


def _in_runs(texts: Iterator[str], count: int, size: int) -> str:
    """Return the number of cases, how many are in a run, and a hash of each run."""
    if size < 1:
        raise ValueError(f"a run has at least one case, got {size}")
    hashes = []
    while run := list(islice(texts, size)):
        digest = hashlib.blake2b("\0".join(run).encode(), digest_size=_DIGITS // 2)
        hashes.append(digest.hexdigest())
    return f"{count}/{size}/{''.join(hashes)}"


def _name(entry: str) -> str:
    return entry.rsplit(":", 1)[0]
