"""Look for mistakes that are legal: the epoch runs, but not as anybody wants it."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from dataclasses import dataclass

from ..core import CallSite
from ..core.errors import LintWarning
from ..datapipes.cost import passes_of
from ..graph import Cut, NoCut, Pipe, Rewritten, origin_of, parents_of, walk
from ..graph.cut import split_of
from .adapter import Adapter
from .linting import draws, limits, order, places, shares
from .linting.seen import Seen, after, joined
from .profile import untimed
from .scattered import scattered

# What a disk of 2 GB/s brings in half a second: less is not worth a word.
MUCH_BYTES = 10**9


@dataclass(frozen=True)
class Mistake:
    """One mistake in a graph."""

    name: str
    """What ``Lint(ignore=...)`` calls it."""
    what: str
    """What happens because of it, in one sentence."""
    do: str
    """How to mend it."""
    origin: CallSite | None
    """Where the user wrote the pipe."""

    def __str__(self) -> str:
        place = f"\n  at {self.origin}" if self.origin is not None else ""
        return f"{self.name}: {self.what}{place}\n  {self.do}"


class Lint(Adapter):
    """Warn of mistakes in a graph, each by name, with the fix and the line; changes nothing.

    ==================  ==================================================================
    name                what is wrong
    ==================  ==================================================================
    unshuffled-shards   workers share items out that were not shuffled before
    shards-of-batches   workers share batches out: their number decides what is in one
    needless-sharding   a chain that can be split is divided by hand
    divided-twice       a branch is divided twice at one level: a share of a share
    shuffled-batches    batches are shuffled, not what is in them
    shuffled-voxels     a shuffle buffers patches of voxels instead of descriptions
    shuffled-twice      a shuffle mixes what another has just mixed
    cycled-shuffle      a shuffle after ``cycle()`` mixes one turn with the next
    one-volume-batches  the patches of a batch come from the same volume
    small-shuffle       a shuffle holds fewer items than one volume gives
    frozen-draws        a cache keeps what was drawn at random: every epoch is the same
    twice-interpolated  a spatial pipe comes after voxels were made
    copied-batches      torch's ``batch`` gathers lazy patches, which ``batch_patches`` fills
    repeated-draws      ``repeat()`` brings the same patches with the same draws again
    early-device        samples go to a device one by one, before they are batched
    device-midway       what follows a device cannot stay in this process: workers are refused
    endless             ``cycle()`` without a count: no epoch ends
    wrong-length        ``set_length()`` says another length than what it yields has
    large-prefetch      ``prefetch()`` may hold more than a quarter of the memory
    boundless-failures  ``OnError`` without a budget takes a missing disk for an empty epoch
    scattered-chunks    patches are shuffled over more volumes than memory keeps chunks of
    planned-functions   the graph can be split, but a function runs on the wrong side of it
    early-prefetch      ``prefetch()`` stands inside of what makes one batch, and adds nothing
    stranded-functions  a lambda or local function is where workers would run it
    not-split           the graph cannot be split, so workers run all of it
    no-sharding         it cannot, and nothing divides it: every worker or rank has all items
    whole-volumes       statistics, boxes or masks take a pass over volumes that lie far away
    idle-workers        the loader has workers, and no pipe is left for them: all of them plan
    ==================  ==================================================================

    Give it after the other adapters: it looks at the graph as they left it.

    Parameters
    ----------
    ignore
        Names that are no mistakes here.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import from_cases
    >>> chain = from_cases([{"image": [[[0.0]]]}]).open_volume().lazy_patch(1, samples_per_volume=8)
    >>> [mistake.name for mistake in Lint().mistakes(chain.batch_patches(4))]
    ['one-volume-batches']
    """

    def __init__(self, *, ignore: Collection[str] = ()) -> None:
        unknown = sorted(set(ignore) - set(_NAMES))
        if isinstance(ignore, str) or unknown:
            msg = f"ignore takes names out of {_NAMES}, got {ignore!r}"
            raise ValueError(msg)
        self.ignore = frozenset(ignore)

    def mistakes(self, pipe: Pipe) -> list[Mistake]:
        """Return what is wrong with a graph: pipe by pipe, sources first, then as a whole."""
        found = []
        split = split_of(pipe)
        seen: dict[int, Seen] = {}
        for here in walk(pipe):
            before = joined([seen[id(p)] for p in parents_of(here)], isinstance(split, Cut))
            for name, check in _OF_PIPES.items():
                told = None if name in self.ignore else check(here, before)
                if told is not None:
                    found.append(Mistake(name, *told, origin_of(here)))
            seen[id(here)] = after(here, before)
        for name, look in _OF_GRAPHS.items():
            for at, what, do in () if name in self.ignore else look(pipe, split):
                found.append(Mistake(name, what, do, origin_of(at)))
        return found

    def mistake_of_workers(self, pipe: Pipe, workers: int) -> Mistake | None:
        """Return what is wrong if so many workers run a graph; a loader knows, and asks."""
        split = split_of(pipe)
        if not workers or _IDLE in self.ignore or not isinstance(split, Cut) or split.realizing:
            return None
        what = f"num_workers={workers}, but every pipe plans, so the loader's process runs them all"
        do = "End the chain with .batch_patches() or .batch(), which workers run; or use none."
        if any(True for _ in places.planned_functions(pipe, split)):
            do = "Put .sharding_filter() before what is to run in workers; or use none."
        return Mistake(_IDLE, what, do, origin_of(pipe))

    def rewrite(self, pipe: Pipe) -> Rewritten:
        """Return the very same graph, after a :class:`LintWarning` for each mistake."""
        for mistake in self.mistakes(pipe):
            warnings.warn(str(mistake), LintWarning, stacklevel=4)
        return Rewritten(pipe, pipe)


def _whole_volumes(sink: Pipe, split: Cut | NoCut) -> tuple[tuple[Pipe, str, str], ...]:
    return tuple(
        (
            each.pipe,
            f"before the first patch of each case it reads all of {each.key!r}: "
            f"{each.volumes} x {each.bytes_each / 1e6:.3g} MB, {each.bytes / 1e6:.3g} MB in the "
            "first epoch on this machine",
            "Write a manifest once (voxpipe index) and begin with from_manifest(), which has these "
            "numbers; or give them to the pipe. Later epochs and runs find them in the cache.",
        )
        for each in passes_of(untimed(sink), 0, 0)
        if each.remote or each.bytes >= MUCH_BYTES
    )


def _scattered(sink: Pipe, split: Cut | NoCut) -> tuple[tuple[Pipe, str, str], ...]:
    found = scattered(sink)
    return () if found is None else (found,)


_OF_PIPES = {**shares.CHECKS, **order.CHECKS, **draws.CHECKS, **places.CHECKS, **limits.CHECKS}
_OF_GRAPHS = {
    "scattered-chunks": _scattered,
    "whole-volumes": _whole_volumes,
    **places.OF_GRAPHS,
    **shares.OF_GRAPHS,
}
# Of a graph and its loader.
_IDLE = "idle-workers"
_NAMES = sorted({**_OF_PIPES, **_OF_GRAPHS, _IDLE: None})
