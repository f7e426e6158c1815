"""Shuffle the plans of patches: all of them, within a window, or within the size of a cache."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from itertools import count, groupby, islice
from typing import Any

import numpy as np

from ..core import Sample, Stream
from ..core.call_site import looking_ahead, shorten
from ..core.errors import GraphError, SampleError
from ..core.lru_cache import LRUCache
from ..core.validate import validate_int
from ..graph import NoCut, Pipe, origin_of, walk
from ..graph.cut import split_of
from ..spatial.lazy.lazy_patch import patches_of
from ..spatial.lazy.read_plan import ChunkBytes
from ..spatial.ops.op import whole_number
from .datapipe import SameLength, chained_form, locate_errors, wrong_item
from .epoch import copy_for_epoch
from .item_numbers import (
    LeftOut,
    NumberedItems,
    OrderedItems,
    Permutation,
    Visits,
    case_number,
    items_from,
    number_or_list,
)

NONE, GLOBAL, WINDOW, CHUNK_LOCAL = "none", "global", "window", "chunk_local"
WINDOW_SIZE = 1024
MEMORY_BYTES = 256 * 1024**2


@dataclass(frozen=True)
class ShuffleSpec:
    """A kind of ``shuffle_plans()``; make one by the names below.

    ==================================  ==========================================================
    ``ShuffleSpec.none()``              the order of the plan: volume after volume
    ``ShuffleSpec.window(size)``        windows of that many plans are shuffled, each by itself; an
                                        epoch's first one has a drawn length, so ends differ
    ``ShuffleSpec.chunk_local(bytes)``  visits to volumes are shuffled, then the patches of as many
                                        as fit into that much memory together (the idea of
                                        CorgiPile): every chunk is decoded about once
    ``ShuffleSpec.all_patches()``       every patch of the epoch, equally likely everywhere
    ==================================  ==========================================================

    Raises
    ------
    SampleError
        At construction: for another ``kind``.

    Examples
    --------
    >>> ShuffleSpec.chunk_local(2**30)
    ShuffleSpec.chunk_local(1073741824)
    """

    kind: str = GLOBAL
    """``"none"``, ``"global"``, ``"window"`` or ``"chunk_local"``."""
    size: int = 0
    """Plans of the window, or bytes of decoded chunks."""

    def __post_init__(self) -> None:
        if self.kind not in (NONE, GLOBAL, WINDOW, CHUNK_LOCAL):
            msg = f"no order is called {shorten(self.kind)}"
            do = "Write ShuffleSpec.none(), all_patches(), window(size) or chunk_local(bytes)."
            raise SampleError(msg, do=do)
        if self.kind in (WINDOW, CHUNK_LOCAL):
            validate_int("size", self.size, least=1)

    @classmethod
    def none(cls) -> ShuffleSpec:
        """Leave the order as it is."""
        return cls(NONE)

    @classmethod
    def all_patches(cls) -> ShuffleSpec:
        """Shuffle all patches of an epoch."""
        return cls(GLOBAL)

    @classmethod
    def window(cls, size: int = WINDOW_SIZE) -> ShuffleSpec:
        """Shuffle within windows of so many plans; an epoch's first one has a drawn length."""
        return cls(WINDOW, validate_int("size", size, least=1))

    @classmethod
    def chunk_local(cls, memory_bytes: int = MEMORY_BYTES) -> ShuffleSpec:
        """Shuffle the patches of a cache of so many bytes of decoded chunks."""
        return cls(CHUNK_LOCAL, validate_int("memory_bytes", memory_bytes, least=1, unit="bytes"))

    def __repr__(self) -> str:
        name = "all_patches" if self.kind == GLOBAL else self.kind
        return f"ShuffleSpec.{name}({self.size or ''})"


# Patches of the first visit from which the memory of a visit is estimated.
_LOOKED_AT = 64


@chained_form("shuffle_plans")
class ShufflePlans(SameLength):
    """Shuffle patches before anything is read: descriptions change places.

    The order is a function of (seed, epoch): the same under any number of workers and after a
    resume. Where items have numbers, no plan is made before its turn. ``chunk_local`` keeps 16
    bytes per visit then. Elsewhere all descriptions are kept, a kilobyte each, or those of a
    window. The cost and the mixing of an order are reported by ``shuffle_report()``, without
    reading a voxel.

    ``chunk_local`` reads the header of the first case, to estimate how many visits fit into memory.
    Each worker has a cache of its own, and gets the batches of the same visits if no other worker
    has to wait for that.

    Parameters
    ----------
    spec
        A :class:`ShuffleSpec`; by default all patches of the epoch.

    Raises
    ------
    SampleError
        At construction, if ``spec`` is none.

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

    def __init__(self, parent: Pipe, spec: Any = None) -> None:
        super().__init__(parent)
        self.spec: ShuffleSpec = ShuffleSpec() if spec is None else spec
        self._enabled = True
        self._seed = 0
        if not isinstance(spec, (ShuffleSpec, type(None))):
            msg = f"shuffle_plans() takes a ShuffleSpec, got {shorten(spec)}"
            do = "Write ShuffleSpec.window(1000), for instance."
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
        if not self._enabled or self.spec.kind == NONE:
            yield from self.parent
        elif self.spec.kind == WINDOW:  # also of a source without an end
            items = iter(self.parent)
            for block in count():
                window = list(islice(items, self._window(block)[1]))
                if not window:
                    return
                order = self._permutation(len(window), block)
                yield from (window[order(place)] for place in range(len(window)))
        else:
            yield from self.by_number(number_or_list(self.parent))

    def by_number(self, items: Any) -> Any:
        orders: Any = {GLOBAL: self._globally, WINDOW: self._in_windows, CHUNK_LOCAL: self._locally}
        order = orders.get(self.spec.kind) if self._enabled else None
        return items if order is None or items is None else OrderedItems(items, order)

    def _permutation(self, length: int, block: int = 0) -> Permutation:
        name = f"shuffle_plans {self.spec.kind}"
        return Permutation(length, Stream(self._seed, 0, (block,), name))

    def _globally(self, items: NumberedItems) -> Callable[[int], int]:
        return self._permutation(len(items))

    def _window(self, block: int) -> tuple[int, int]:
        """Return the first place of a window, and its length."""
        # Plans of two windows never mix, so the windows of each epoch end in other places.
        size = self.spec.size
        first = 1 + Stream(self._seed, 0, (), "shuffle_plans window").integer() % size
        return (first + (block - 1) * size, size) if block else (0, first)

    def _in_windows(self, items: NumberedItems) -> Callable[[int], int]:
        first = self._window(0)[1]

        @lru_cache(_WINDOWS)
        def window(block: int) -> tuple[int, Permutation]:
            start, length = self._window(block)
            if not items.holds(start + length - 1):
                length = len(items) - start
            return start, self._permutation(length, block)

        def order(place: int) -> int:
            start, within = window(-(-(place - first + 1) // self.spec.size))
            return start + within(place - start)

        return order

    def _locally(self, items: NumberedItems) -> Callable[[int], int]:
        visits = items.visits()
        if not visits.number:
            return int
        together = max(1, self.spec.size // max(1, visit_bytes(items, visits)))
        visit_of = Stream(self._seed, 0, (), "shuffle_plans visits").generator()
        visit_at = visit_of.permutation(visits.number)
        ends = np.cumsum(visits.counts()[visit_at])

        @lru_cache(_WINDOWS)
        def block_of(block: int) -> tuple[int, Permutation]:
            last = min((block + 1) * together, visits.number) - 1
            start = int(ends[block * together - 1]) if block else 0
            return start, self._permutation(int(ends[last]) - start, block)

        def order(place: int) -> int:
            start, within = block_of(int(np.searchsorted(ends, place, "right")) // together)
            place = start + within(place - start)
            at = int(np.searchsorted(ends, place, "right"))
            before = int(ends[at - 1]) if at else 0
            return visits.span(int(visit_at[at])).start + place - before

        return order


# Windows and blocks whose permutations are kept.
_WINDOWS = 8


def needed_chunks(sample: Any) -> Iterator[ChunkBytes]:
    """Yield the chunks that the lazy patches of a sample read."""
    for key, patch in patches_of(sample).items():
        for place, read in enumerate(patch.reads()):
            yield from read.chunks((sample.identity[:1], key, place))


def visit_bytes(items: NumberedItems, visits: Visits) -> int:
    """Return the bytes of the chunks that the first visit with patches touches; 0 without any."""
    # Reads a header.
    for visit in map(visits.span, range(visits.number)):
        sizes: dict[tuple[Any, ...], int] = {}
        some = visit[:_LOOKED_AT]
        try:
            with looking_ahead():
                for number in some:
                    item = items[number]
                    if isinstance(item, Sample):
                        # Plans of its own, which keep its estimates.
                        apart = {
                            key: one.with_pending(replace(one.pending, identity=item.identity))
                            for key, one in patches_of(item).items()
                        }
                        chunks = needed_chunks(item.with_data(**apart))
                        sizes.update((each.chunk, each.bytes) for each in chunks)
        except LeftOut:
            continue
        if some:
            return sum(sizes.values()) * len(visit) // len(some)
    return 0


# Enough for a mean, and planned in a second.
BATCHES = 256


@dataclass(frozen=True)
class ShuffleReport:
    """Cost and mixing of an order of patches."""

    batches: int
    """Batches that were planned."""
    samples: int
    """Samples in them."""
    volumes_per_batch: float
    """Different volumes in a batch: the mean. The more, the less alike are its samples."""
    fewest_volumes: int
    """Different volumes in the batch that has the fewest."""
    residency: float
    """Share of the chunks that patches touch that a cache still has, from 0 to 1."""
    bytes_per_sample: float
    """Decoded bytes that come anew into the cache, per sample."""
    cache_bytes: int
    """Size of that cache, least recently used first out; there is one for all samples."""

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.samples} samples in {self.batches} batches\n"
            f"volumes per batch   {self.volumes_per_batch:.2f} (at least {self.fewest_volumes})\n"
            f"cache residency     {self.residency:.0%} of {self.cache_bytes / 2**20:g} MiB\n"
            f"bytes per sample    {self.bytes_per_sample / 1e6:.3g} MB decoded"
        )


def shuffle_report(
    pipe: Pipe,
    *,
    seed: int = 0,
    epoch: int = 0,
    batches: int = BATCHES,
    cache_bytes: int | None = None,
) -> ShuffleReport:
    """Return cost and mixing of the order of a chain. Headers are read, and no voxel.

    Parameters
    ----------
    pipe
        The chain.
    seed, epoch
        The run.
    batches
        Batches of it that are planned, from the first.
    cache_bytes
        Decoded chunks that are kept; by default those of ``ShuffleSpec.chunk_local``, or 256 MiB.

    Raises
    ------
    GraphError
        The chain cannot be split, so nothing is planned.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> pipe = from_cases([{"image": np.zeros((8, 8, 8))}] * 4).open_volume()
    >>> pipe = pipe.lazy_patch(4, samples_per_volume=4)
    >>> shuffle_report(pipe.batch_patches(4)).volumes_per_batch
    1.0
    """
    split = split_of(pipe)
    if isinstance(split, NoCut):
        raise GraphError(f"the order is not planned: {split.reason}").at(origin_of(pipe))
    planner = copy_for_epoch(split.planner, seed, epoch)
    plan = items_from(planner, 0)
    if cache_bytes is None:
        specs = [p.spec for p in walk(planner) if isinstance(p, ShufflePlans)]
        local = [spec.size for spec in specs if spec.kind == CHUNK_LOCAL]
        cache_bytes = local[-1] if local else MEMORY_BYTES
    most = validate_int("cache_bytes", cache_bytes, least=0, unit="bytes")
    cache: LRUCache[int] = LRUCache(most, lambda size: size)
    counts, samples = [], 0
    touches = hits = miss_bytes = 0
    with looking_ahead():
        items = islice(plan, validate_int("batches", batches, least=1) * split.group)
        while batch := list(islice(items, split.group)):
            counts.append(len({case_number(item) or id(item) for item in batch}))
            samples += len(batch)
            for item in batch:
                for each in needed_chunks(item):
                    touches += 1
                    if cache.get(each.chunk) is not None:
                        hits += 1
                        continue
                    miss_bytes += each.bytes
                    if each.bytes <= most:
                        cache.get_or(each.chunk, partial(int, each.bytes))
    mean, fewest = sum(counts) / max(1, len(counts)), min(counts, default=0)
    still, anew = hits / max(1, touches), miss_bytes / max(1, samples)
    return ShuffleReport(len(counts), samples, mean, fewest, still, anew, most)


@chained_form("interleave")
class Interleave(SameLength):
    """Let the patches of several visits to volumes take turns, some of each at a time.

    Put it after ``lazy_patch(samples_per_volume=...)``, with ``patches_per_turn`` the size of a
    batch: every batch then holds patches of one visit, neighbouring batches those of different
    visits. A worker gets the batches of the same visits as long as no other worker has to wait. So
    a chunk is decoded in one process. Batches and their order depend on the chain alone, not on the
    number of workers. Nothing is read: only descriptions are buffered.

    Parameters
    ----------
    visits
        Visits that are under way at once: the number of workers, or a multiple of it.
    patches_per_turn
        Patches of one visit before it is the next one's turn.

    Examples
    --------
    >>> import numpy as np
    >>> from voxpipe.datapipes.iter import from_cases
    >>> cases = [{"case": name, "image": np.zeros((8, 8, 8))} for name in "abc"]
    >>> pipe = from_cases(cases).open_volume().lazy_patch(4, samples_per_volume=4)
    >>> [patch.case for patch in pipe.interleave(visits=2, patches_per_turn=2)]
    ['a', 'a', 'b', 'b', 'a', 'a', 'b', 'b', 'c', 'c', 'c', 'c']
    """

    def __init__(self, parent: Pipe, visits: int, patches_per_turn: int = 1) -> None:
        super().__init__(parent)
        with locate_errors(self):
            self.visits = whole_number("visits", visits, least=1)
            self.patches_per_turn = whole_number("patches_per_turn", patches_per_turn, least=1)

    def __iter__(self) -> Iterator[Sample]:
        return self._in_turns(deque(items) for _, items in groupby(self.parent, self._case_of))

    def by_number(self, items: Any) -> Any:
        return OrderedItems(items, self._order) if items is not None and items.in_visits else None

    def _order(self, items: NumberedItems) -> Callable[[int], int]:
        visits = items.visits()
        if visits.each:
            return partial(self._even, visits)
        lanes = (deque(visits.span(visit)) for visit in range(visits.number))
        return array("q", self._in_turns(filter(None, lanes))).__getitem__

    def _even(self, visits: Visits, place: int) -> int:
        """Return the number of the patch at a place, where all visits have as many patches."""
        each, turn = visits.each, self.patches_per_turn
        # Visits that take turns begin and end together; the last group may have fewer.
        group, rest = divmod(place, self.visits * each)
        lanes = min(self.visits, visits.number - group * self.visits)
        whole = each // turn * turn
        if rest >= whole * lanes:  # the last turn is shorter
            rest, before, turn = rest - whole * lanes, whole, each - whole
        else:
            number, rest = divmod(rest, lanes * turn)
            before = number * turn
        lane, patch = divmod(rest, turn)
        return visits.span(group * self.visits + lane).start + before + patch

    def _in_turns(self, visits: Iterator[deque[Any]]) -> Iterator[Any]:
        """Yield the patches of visits, of which some take turns."""
        lanes = list(islice(visits, self.visits))
        turn = 0
        while lanes:
            lane = lanes[turn]
            for _ in range(min(self.patches_per_turn, len(lane))):
                yield lane.popleft()
            if not lane:
                # The next visit replaces the finished one, so that the same worker gets it.
                following = next(visits, None)
                if following is None:
                    del lanes[turn]
                    turn -= 1
                else:
                    lanes[turn] = following
            turn = (turn + 1) % max(1, len(lanes))

    def _case_of(self, sample: Any) -> Any:
        if not isinstance(sample, Sample):
            raise wrong_item(self, sample, "a sample", "Put interleave() after lazy_patch().")
        return case_number(sample)
