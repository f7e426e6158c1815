"""Shuffle the plans of patches: all of them, within a window, or what a cache can serve."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, islice
from typing import Any, ClassVar

import numpy as np

from ..core import Sample, Stream
from ..core.errors import SampleError
from ..core.origin import shorten
from ..graph import Pipe, Traits
from ..realizing.touched import planned_apart, touched
from ..spatial import without_reading
from ..spatial.amounts import is_integer
from .datapipe import DataPipe, length_of
from .forms import chained
from .lazy_patch import LazyPatches
from .shuffle_spec import CHUNK_LOCAL, GLOBAL, NONE, OWN, WINDOWED, ShuffleSpec

# Patches of the first visit that are looked at to tell what a visit takes in memory.
_LOOKED_AT = 64


@dataclass(frozen=True)
class Visit:
    """The patches of one volume that come one after another."""

    count: int
    """How many."""
    patch: Callable[[int], Any]
    """Returns one, by its number."""


@chained("shuffle_plans")
class ShufflePlans(DataPipe):
    """Shuffle patches before anything is read: descriptions change places.

    The order is a function of (seed, epoch): the same under any number of workers and after a
    resume. Right after ``lazy_patch`` no patch is kept, only the cases and eight bytes per patch;
    elsewhere the descriptions are, a kilobyte each. ``shuffle_report()`` tells what an order
    costs and gives, without reading a voxel.

    Parameters
    ----------
    spec
        A :class:`ShuffleSpec`, or one of a subclass that says its order; by default all patches
        of the epoch.

    Notes
    -----
    ``chunk_local`` reads the header of the first case, to tell how many visits fit into memory.
    Each worker has a cache of its own, and is given the batches of the same visits where that
    keeps no other one waiting.

    Raises
    ------
    SampleError
        At construction, if ``spec`` is none. While the epoch goes on, if the order of a subclass
        leaves a patch out, or names one twice.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> cases = [{"case": name, "image": np.zeros((8, 8, 8))} for name in "abc"]
    >>> pipe = from_cases(cases).open_volume().lazy_patch(4, samples_per_volume=4)
    >>> local = pipe.shuffle_plans(ShuffleSpec.chunk_local(1))
    >>> mixed = [patch.case for patch in local]
    >>> [len(set(mixed[n : n + 4])) for n in (0, 4, 8)]  # one volume after another
    [1, 1, 1]
    >>> len(set(patch.identity for patch in pipe.shuffle_plans()))
    12
    """

    traits: ClassVar[Traits] = Traits()

    def __init__(self, parent: Pipe, spec: Any = None) -> None:
        super().__init__()
        self.parent = parent
        self.spec: ShuffleSpec = ShuffleSpec() if spec is None else spec
        self._enabled = True
        self._seed = 0
        if not isinstance(spec, (ShuffleSpec, type(None))):
            msg = f"shuffle_plans() takes a ShuffleSpec, got {shorten(spec)}"
            do = "Write ShuffleSpec.windowed(1000), for instance."
            raise SampleError(msg, do=do).at(self.origin)

    def set_shuffle(self, shuffle: bool = True) -> ShufflePlans:
        """Turn it on or off; ``Shuffle`` does."""
        self._enabled = bool(shuffle)
        return self

    def set_seed(self, seed: int) -> ShufflePlans:
        """Take the seed of the next pass."""
        self._seed = seed
        return self

    def __iter__(self) -> Iterator[Any]:
        """Yield every item of the parent once."""
        kind = self.spec.kind if self._enabled else NONE
        draw = Stream(self._seed, 0, (), f"shuffle_plans {kind}").generator()
        if kind == WINDOWED:
            yield from _windowed(self.parent, self.spec.size, draw)
        elif kind == GLOBAL:
            yield from _mixed(list(self._visits()), draw)
        elif kind == CHUNK_LOCAL:
            yield from self._local(list(self._visits()), draw)
        elif kind == OWN:
            yield from self._own(list(self._visits()), draw)
        else:
            yield from self.parent

    def _local(self, visits: list[Visit], draw: np.random.Generator) -> Iterator[Any]:
        if not visits:
            return
        together = max(1, self.spec.size // max(1, visit_bytes(visits[0])))
        order = draw.permutation(len(visits)).tolist()
        for first in range(0, len(order), together):
            yield from _mixed([visits[n] for n in order[first : first + together]], draw)

    def _own(self, visits: list[Visit], draw: np.random.Generator) -> Iterator[Any]:
        """Yield the patches in the order that a subclass says, having looked at every number."""
        counts = [visit.count for visit in visits]
        cases = [getattr(visit.patch(0), "case", "") for visit in visits]
        numbers = self.spec.order(counts, cases, draw)
        try:
            yield from _ordered(visits, _each_once(numbers, sum(counts)))
        except _NoOrder as error:
            name = type(self.spec).__name__
            do = "Return every number below sum(counts) once."
            raise SampleError(f"{name}.order() {error}", do=do).at(self.origin) from None

    def _visits(self) -> Iterator[Visit]:
        """Yield what comes one after another of the same case."""
        parent = self.parent
        if isinstance(parent, LazyPatches) and parent.sampling != "grid":
            for patch in parent.visits():
                yield Visit(parent.samples_per_volume, patch)
            return
        held: list[Any] = []
        for item in parent:
            if held and _case(held[0]) != _case(item):
                yield Visit(len(held), held.__getitem__)
                held = []
            held.append(item)
        if held:
            yield Visit(len(held), held.__getitem__)

    def __len__(self) -> int:
        """Return the parent's length; TypeError if that has none."""
        return length_of(self, self.parent)


def visit_bytes(visit: Visit) -> int:
    """Return the bytes of the chunks that the patches of a visit touch; 0 if there are none.

    Reads a header.
    """
    found: dict[tuple[Any, ...], int] = {}
    with without_reading():
        for number in range(min(visit.count, _LOOKED_AT)):
            item = visit.patch(number)
            if isinstance(item, Sample):
                found.update((each.chunk, each.bytes) for each in touched(planned_apart(item)))
    return sum(found.values()) * visit.count // max(1, min(visit.count, _LOOKED_AT))


def _case(item: Any) -> Any:
    return item.identity[:1] if isinstance(item, Sample) else None


def _mixed(visits: list[Visit], draw: np.random.Generator) -> Iterator[Any]:
    """Yield the patches of some visits in random order."""
    total = sum(visit.count for visit in visits)
    yield from _ordered(visits, draw.permutation(total).tolist())


def _ordered(visits: list[Visit], numbers: Iterable[int]) -> Iterator[Any]:
    """Yield the patches of some visits by their numbers."""
    ends = list(accumulate(visit.count for visit in visits))
    for number in numbers:
        owner = bisect_right(ends, number)
        yield visits[owner].patch(number - ends[owner] + visits[owner].count)


class _NoOrder(Exception):
    """Numbers are not those of all patches."""


def _each_once(numbers: Any, count: int) -> Iterator[int]:
    """Yield whole numbers below ``count``; none may be missing or come twice."""
    seen = np.zeros(count, np.bool_)
    if not isinstance(numbers, Iterable):
        msg = f"returned {shorten(numbers)}, which is no series of numbers"
        raise _NoOrder(msg)
    for number in numbers:
        if not is_integer(number) or not 0 <= number < count:
            msg = f"gave {shorten(number)} for {count} patches"
            raise _NoOrder(msg)
        if seen[number]:
            msg = f"gave {number} twice"
            raise _NoOrder(msg)
        seen[number] = True
        yield int(number)
    if not seen.all():
        missing = np.flatnonzero(~seen)
        msg = f"left out {len(missing)} of {count} patches, the first of them {missing[0]}"
        raise _NoOrder(msg)


def _windowed(parent: Any, size: int, draw: np.random.Generator) -> Iterator[Any]:
    """Yield the items of a window at random; one that went out is replaced by the next."""
    items = iter(parent)
    held = list(islice(items, size))
    for item in items:
        place = int(draw.integers(len(held)))
        yield held[place]
        held[place] = item
    for place in draw.permutation(len(held)).tolist():
        yield held[place]
