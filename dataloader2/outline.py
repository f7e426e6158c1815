"""Outlines of a chain, its cases and its order, which a state holds to name what differs.

Two hashes decide whether a state belongs to a loader. A name and a short hash for each pipe, and
a hash for each of a few dozen runs of cases, are there to say where a foreign one differs. They
are bounded, so that a state stays small whatever the chain and the data.

A state belongs to the chain as it was written: most adapters change neither which items come nor
when. One that does (``Shuffle(False)``, a function that filters) makes the same place another one,
so a state also holds how the order of the graph that ran differs from the written one.
"""

from __future__ import annotations

import hashlib
from collections import Counter
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
    is_switched_off,
    origin_of,
    traits_of,
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
    """The hashes of a chain and its cases.

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
        """Return the outline of a chain as it is now; objects in it may change as they run."""
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
        found = (
            [] if len(texts) == int(count) else [f"there were {count} cases, and are {len(texts)}"]
        )
        places = range(0, max(len(hashes), len(runs)), _DIGITS)
        run = next((n for n in places if hashes[n : n + _DIGITS] != runs[n : n + _DIGITS]), None)
        if run is not None:
            first = run // _DIGITS * int(size)
            last = min(first + int(size), len(texts)) - 1
            of = f"case {first}" if last <= first else f"one of the cases {first} to {last}"
            now = f", now {texts[first]}" if last == first else ""
            found.append(f"the first that differs is {of}{now}")
        return "; ".join(found)


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


# About 25 bytes each: half a kilobyte of the four that a state may have.
_MOST = 20
_OFF = "-off"
_WHOLE = "="
_DO = (
    "Give the loader the adapters that the state was saved with; set others by loader.adapters "
    "when that epoch has ended."
)


def changes_of_order(written: Pipe, run: Pipe) -> str:
    """Return in what pipes that decide on the order two graphs differ; empty if in none.

    Each is a word: ``-`` or ``+``, the chained name, a short hash of the settings, and ``-off`` for
    a shuffle that does not; they say what differs, twenty of them at most. The last word, ``=`` and
    a hash of all that decide now, says that two orders are the same: a shuffle before a batch is
    not one after it.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> pipe = IterableWrapper(range(4)).map(abs)
    >>> changes_of_order(pipe, pipe.map(str))
    ''
    >>> [word.split(":")[0] for word in changes_of_order(pipe, pipe.batch(2)).split()][:-1]
    ['+batch']
    """
    before, after = list(_deciding(written)), list(_deciding(run))
    if before == after:
        return ""
    gone, come = Counter(before) - Counter(after), Counter(after) - Counter(before)
    words = [f"-{word}" for word in gone.elements()] + [f"+{word}" for word in come.elements()]
    whole = hashlib.blake2b("\0".join(after).encode(), digest_size=8).hexdigest()
    return " ".join([*words[:_MOST], f"{_WHOLE}{whole}"])


def refuse_other_order(saved: str | None, own: str) -> None:
    """Raise if the adapters of a state made another order than those of a loader.

    Raises
    ------
    StateMismatch
        Naming the pipes. Not for None: a state that was saved before orders were told.
    """
    if saved is None or saved == own:
        return
    before, now = _difference_text(saved), _difference_text(own)
    if before == now:
        now = "these pipes in other places"
    msg = f"the state was saved {before}, and this loader runs {now}: "
    raise StateMismatch(msg + "adapters changed which items come, or when", do=_DO)


def _deciding(sink: Pipe) -> Iterator[str]:
    """Yield a word for each pipe that decides which items come, and when, parents first."""
    for pipe in walk(sink):
        traits = traits_of(pipe)
        # Those that make items ahead, or stay in this process, hand on what comes as it comes.
        if traits.per_item or traits.watches or traits.ahead or traits.main_process:
            continue
        off = _OFF if is_switched_off(pipe) else ""
        yield f"{chained_name(pipe)}:{fingerprint_of_pipe(pipe)}{off}"


def _difference_text(words: str) -> str:
    """Return the words of a changed order as text."""
    gone: dict[str, int] = {}
    come: dict[str, bool] = {}
    for word in words.split():
        name = word[1:].split(":")[0]
        if word[0] == "-":
            gone[name] = 1
        elif word[0] == "+":
            come[name] = word.endswith(_OFF)
    both = [f"{n}() {'turned off' if off else 'changed'}" for n, off in come.items() if n in gone]
    new = [f"with {name}()" for name in come if name not in gone]
    old = [f"without {name}()" for name in gone if name not in come]
    return ", ".join(both + new + old) or ("with pipes in another order" if words else "as written")
