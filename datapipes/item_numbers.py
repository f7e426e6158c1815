"""The items of an epoch by their numbers: any of them is planned without those before it.

An order is a function from a number to a number. Random numbers belong to the identity of an item,
so a pipe whose items have numbers needs no history: a shuffle is a keyed permutation.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, count, groupby, islice, takewhile
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch.utils.data.datapipes.iter import Mapper, ShardingFilter, Shuffler

from ..core import Sample, Stream
from ..core.context import holding
from ..core.errors import add_location
from ..core.lru_cache import cached_property
from ..core.sample import case_of
from ..graph import Pipe, describe, parents_of, readers, rebuild, traits_of, walk
from ..graph.node import copy_pipe
from .datapipe import MAY_OPEN, DataPipe, PerItem, length, note_error
from .epoch import SeedStamper

Guard: TypeAlias = Callable[[int, Callable[[], Any]], Any]
"""Calls the function that makes the item of a number, for instance with seeded generators."""

# A table of so few numbers takes 32 kB; it is drawn uniformly among all permutations.
_SMALL = 2**12
_ROUNDS = 8
# Multipliers of SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number
# generators", 2014), the bits of a word, and a shift.
_MULTIPLIERS = 0xBF58476D1CE4E5B9, 0x94D049BB133111EB, 2**64 - 1, 29
# Visits that are kept: patches of one volume share its description.
_VISITS = 1024


class LeftOut(Exception):
    """An item that cannot be planned; the log of errors has its error already."""


class Permutation:
    """A permutation of ``range(length)`` that a stream decides.

    A Feistel network with cycle walking computes each place by itself. Short ranges have a table,
    because all of their permutations are then equally likely.
    References: Luby and Rackoff, "How to construct pseudorandom permutations", 1988; Black and
    Rogaway, "Ciphers with arbitrary finite domains", 2002.

    Examples
    --------
    >>> permutation = Permutation(5, Stream(7, 0, (), "shuffle"))
    >>> sorted(permutation(n) for n in range(5))
    [0, 1, 2, 3, 4]
    """

    def __init__(self, length: int, stream: Stream, small: int = _SMALL) -> None:
        self.length = length
        self._table: list[int] | None = None
        if length <= small:
            self._table = stream.generator().permutation(length).tolist()
            return
        bits = max(2, (length - 1).bit_length())
        low = bits // 2
        keys = stream.generator().integers(2**63, size=_ROUNDS).tolist()
        own = (low, (1 << low) - 1, 64 - low, 64 - bits + low, *_MULTIPLIERS, *keys)
        # Those of arrays have the type of their numbers: NumPy converts others each time.
        self._constants, self._words = own, tuple(map(np.uint64, own))

    def __call__(self, number: int) -> int:
        """Return the number at a place; IndexError beyond the last."""
        if not 0 <= number < self.length:  # the walk might never end
            raise IndexError(f"place {number} of {self.length}")
        if self._table is not None:
            return self._table[number]
        # The network permutes less than twice as many numbers.
        while (number := _network(number, self._constants)) >= self.length:
            pass
        return number

    def of_each(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers at many places, ten times as fast as one by one."""
        if self._table is not None:
            return np.array(self._table, np.int64)[numbers]
        places: Any = _network(numbers.astype(np.uint64), self._words)
        while (outside := np.flatnonzero(places >= self.length)).size:
            places[outside] = _network(places[outside], self._words)
        return np.asarray(places, np.int64)


def _network(number: Any, constants: tuple[Any, ...]) -> Any:
    """Return the result of the network, for a number or an array of unsigned ones."""
    low_bits, low_ones, rest_of_low, rest_of_high, first, second, ones, shift, *keys = constants
    high, low = number >> low_bits, number & low_ones
    for one, other in zip(keys[::2], keys[1::2], strict=True):
        # The best bits of a product are its highest.
        word = (low + one) * first & ones
        high ^= ((word ^ word >> shift) * second & ones) >> rest_of_high
        word = (high + other) * first & ones
        low ^= ((word ^ word >> shift) * second & ones) >> rest_of_low
    return high << low_bits | low


class Visits:
    """How many patches each visit to a volume has, in the order of the visits."""

    def __init__(self, number: int, each: int, ends: Sequence[int] = ()) -> None:
        self.number = number
        self.each = each
        """Patches of every visit; 0 where ``ends`` has them."""
        self.ends = ends

    def counts(self) -> NDArray[np.int64]:
        """Return the number of patches of each visit."""
        if self.each:
            return np.full(self.number, self.each)
        ends = np.asarray(self.ends, np.int64)
        return ends - np.concatenate([[0], ends[:-1]]).astype(np.int64)

    def span(self, visit: int) -> range:
        """Return the numbers of the patches of a visit."""
        if self.each:
            return range(visit * self.each, (visit + 1) * self.each)
        return range(self.ends[visit - 1] if visit else 0, self.ends[visit])


class NumberedItems:
    """Items of an epoch by their numbers."""

    in_visits = True  # whether patches of one volume follow each other, as one visit
    holds_patches = False  # whether items are patches of the items of an earlier pipe
    cases: Any = None
    """The items of the source, or of ``open_volume()``, if later pipes treat all of them alike."""

    def __len__(self) -> int:
        """Return the number of items; this may read headers."""
        raise NotImplementedError

    def holds(self, number: int) -> bool:
        """Whether there is an item of this number; reads as few headers as possible."""
        return number < len(self)

    def __getitem__(self, number: int) -> Any:
        """Return the item of a number that :meth:`holds`; LeftOut if it cannot be planned."""
        raise NotImplementedError

    def visits(self) -> Visits:
        """Return the visits; by default each item is one."""
        return Visits(len(self), 1)

    def origins(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        """Return the entries of many identities: the number in :attr:`cases`, then ordinals."""
        return (numbers,)

    def __iter__(self) -> Iterator[Any]:
        return self.items_from(0)

    def items_from(self, start: int) -> Iterator[Any]:
        """Yield the items from a number on, without those that cannot be planned."""
        for number in takewhile(self.holds, count(start)):
            try:
                item = self[number]
            except LeftOut:
                continue
            yield item


class ItemList(NumberedItems):
    """Items of a list; those of one volume in a row are a visit."""

    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, number: int) -> Any:
        return self._items[number]

    def visits(self) -> Visits:
        lengths = [len(list(group)) for _, group in groupby(self._items, case_number)]
        return Visits(len(lengths), 0, list(accumulate(lengths)))


class EachItem(NumberedItems):
    """One item for each item of the parent."""

    guard: Guard | None = None

    def __init__(self, items: NumberedItems, make: Callable[[Any], Any], pipe: Any) -> None:
        self._items, self._make, self._pipe = items, make, pipe
        self.holds = items.holds  # type: ignore[method-assign]
        self.visits = items.visits  # type: ignore[method-assign]
        self.origins = items.origins  # type: ignore[method-assign]
        self.cases = items.cases if _treats_alike(pipe) else None
        self.in_visits, self.holds_patches = items.in_visits, items.holds_patches

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, number: int) -> Any:
        item = self._items[number]
        try:
            if self.guard is None:
                return self._make(item)
            return self.guard(number, partial(self._make, item))
        except Exception as error:
            error = self.with_number(error, number, item)
            if not isinstance(self._pipe, DataPipe):
                raise error
            note_error(self._pipe, item, error)
        raise LeftOut

    def with_number(self, error: Exception, number: int, item: Any) -> Exception:
        """Return an error with the number of its item, unless that has the name of a case."""
        if case_of(item):
            return error
        source = parents_of(self._pipe)[0]
        while traits_of(source).watches:  # an adapter's pipe, which watches one of the user's
            (source,) = parents_of(source)
        return add_location(error, item=f"item {number} of {describe(source)}")


class Visit(NamedTuple):
    """The patches of one volume."""

    patches: int  # how many
    patch: Callable[[int], Any]  # returns one, by its number


class NumberedPatches(NumberedItems):
    """Patches of visits to volumes: ``each`` of every visit, or as many as each says."""

    holds_patches = True

    def __init__(self, items: EachItem, each: int = 0) -> None:
        self.items, self._each = items, each
        # Visits to patches of one volume would be several visits to that volume.
        self.in_visits = items.in_visits and not items.holds_patches
        self._recent: dict[int, Visit] = {}
        self._failures: set[int] = set()
        self._ends = array("q")  # without a common number of patches: those of the first visits
        self.cases = items.cases if each else None

    def _visit(self, number: int) -> Visit:
        """Make a visit, which is kept for its other patches."""
        if number in self._failures:
            raise LeftOut
        try:
            visit: Visit = self.items[number]
        except LeftOut:
            self._failures.add(number)
            raise
        self._recent[number] = visit
        if len(self._recent) > _VISITS:
            del self._recent[next(iter(self._recent))]
        return visit

    def _extend(self, number: int | None = None) -> bool:
        """Count patches of visits until ``number`` is one of them; return whether it is."""
        ends = self._ends
        while number is None or not ends or ends[-1] <= number:
            if not self.items.holds(len(ends)):
                return False
            try:
                patches = (self._recent.get(len(ends)) or self._visit(len(ends))).patches
            except LeftOut:
                patches = 0
            ends.append((ends[-1] if ends else 0) + patches)
        return True

    @cached_property
    def _length(self) -> int:
        return len(self.items) * self._each

    def __len__(self) -> int:
        if self._each:
            return self._length
        self._extend()
        return self._ends[-1] if self._ends else 0

    def holds(self, number: int) -> bool:
        if self._each:
            return number < self._length
        return bool(self._ends and number < self._ends[-1]) or self._extend(number)

    def __getitem__(self, number: int) -> Any:
        if self._each:
            at, place = divmod(number, self._each)
        else:
            if not self._ends or number >= self._ends[-1]:
                self._extend(number)
            at = bisect_right(self._ends, number)
            place = number - (self._ends[at - 1] if at else 0)
        return (self._recent.get(at) or self._visit(at)).patch(place)

    def origins(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        visits, places = np.divmod(numbers, self._each)
        return (*self.items.origins(visits), places)

    def visits(self) -> Visits:
        if self._each:
            return Visits(len(self.items), self._each)
        self._extend()
        return Visits(len(self._ends), 0, self._ends)


class OrderedItems(NumberedItems):
    """The items of the parent in another order: a function from place to number."""

    in_visits = False

    def __init__(
        self, items: NumberedItems, order: Callable[[NumberedItems], Callable[[int], int]]
    ) -> None:
        self._items, self._make_order, self.cases = items, order, items.cases

    @cached_property
    def _order(self) -> Callable[[int], int]:
        return self._make_order(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __getitem__(self, number: int) -> Any:
        return self._items[self._order(number)]

    def origins(self, numbers: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        order = self._order
        if isinstance(order, Permutation):
            return self._items.origins(order.of_each(numbers))
        return self._items.origins(np.array([*map(order, numbers.tolist())], np.int64))


def _treats_alike(pipe: Any) -> bool:
    """Whether a pipe does the same with each sample whose keys and kinds are the same."""
    # The class that has ``apply`` declares it: that of a subclass may do something else.
    kind = next((kind for kind in type(pipe).__mro__ if "apply" in vars(kind)), object)
    return "treats_alike" in vars(kind) and pipe.treats_alike and not traits_of(pipe).runs_user_code


def case_number(item: Any) -> Any:
    """Return the part of an identity that patches of one case share; None without one."""
    return item.identity[:1] if isinstance(item, Sample) else None


def number_items(sink: Pipe, guard: Callable[[Pipe], Guard] | None = None) -> NumberedItems | Pipe:
    """Return the items of the coming pass by their numbers, or the pipe that has none.

    ``guard`` returns the guard of a pipe that runs functions of the user.
    """
    items: NumberedItems | None = None
    counts = readers(sink)
    for pipe in walk(sink):
        if len(parents_of(pipe)) > 1 or counts[id(pipe)] > 1:
            return pipe
        items = _by_number(pipe, items)
        if items is None:
            return pipe
        if guard is not None and traits_of(pipe).runs_user_code:
            maker = items.items if isinstance(items, NumberedPatches) else items
            if not isinstance(maker, EachItem):
                return pipe
            maker.guard = guard(pipe)
    assert items is not None
    return items


def number_or_list(pipe: Pipe) -> NumberedItems:
    """Return the items of the coming pass by their numbers; items without any are listed."""
    items, parents = number_items(pipe), parents_of(pipe)
    if isinstance(items, NumberedItems):
        return items
    traits = traits_of(pipe)
    is_pure = traits.is_known and not traits.runs_user_code
    if len(parents) == 1 and items is not pipe and is_pure:
        own = _by_number(pipe, number_or_list(parents[0]))
        if own is not None:
            return own
    return ItemList(list(pipe))


def items_from(planner: Pipe, start: int) -> Iterator[Any]:
    """Return the items of the coming pass from a number on."""
    items = number_items(planner)
    if isinstance(items, NumberedItems):
        return items.items_from(start)
    return islice(planner, start, None)


def _by_number(pipe: Any, items: NumberedItems | None) -> NumberedItems | None:
    """Return the items of a pipe by their numbers, made of those of its parent."""
    kind = type(pipe)
    if isinstance(pipe, PerItem) and kind.__iter__ is PerItem.__iter__:
        return None if items is None else EachItem(items, pipe.apply, pipe)
    if isinstance(pipe, DataPipe):
        # A subclass that iterates in another way has other items.
        first = next(k for k in kind.__mro__ if not {"by_number", "__iter__"}.isdisjoint(vars(k)))
        own: NumberedItems | None = pipe.by_number(items) if "by_number" in vars(first) else None
        return own
    if items is None:
        return None
    if kind in (Shuffler, ShufflerIterDataPipe):
        return OrderedItems(items, partial(_permutation_of, pipe)) if _is_on(pipe) else items
    if kind is ShardingFilter and pipe.num_of_instances == 1:
        return items
    return EachItem(items, pipe._apply_fn, pipe) if kind is Mapper else None


def _is_on(pipe: Any) -> bool:
    """Whether a ``shuffle()`` of torch's changes the order."""
    return bool(pipe._enabled and pipe.buffer_size > 1)


def _permutation_of(pipe: Any, items: NumberedItems, *, resets: bool = True) -> Permutation:
    # A seed serves one pass, as in torch's; without one, torch's generator draws it.
    if resets:
        pipe.reset()
    return Permutation(len(items), Stream(pipe._rng.getrandbits(62), 0, (), "shuffle"))


class ShufflerIterDataPipe(Shuffler[Any]):
    """torch's ``shuffle()`` in a loader: a permutation of all items of cases in a known number."""

    def __iter__(self) -> Iterator[Any]:
        items: Any = None
        if _is_on(self):  # a list that is not used would take the seed of the pass
            items = number_items(self.datapipe)
            if not isinstance(items, NumberedItems) and _is_countable(self.datapipe):
                items = number_or_list(self.datapipe)
        if isinstance(items, NumberedItems):
            yield from OrderedItems(items, partial(_permutation_of, self, resets=False))
        else:  # of the function itself: torch's hook around it would begin another pass
            whole: Any = Shuffler.__iter__
            yield from whole.__wrapped__(self)


def _is_countable(sink: Pipe) -> bool:
    """Whether a pipe yields descriptions of cases, in a number that is known without reading."""
    if any(traits_of(pipe).voxels for pipe in walk(sink)):
        return False
    if not all(parents_of(pipe) or isinstance(pipe, SeedStamper) for pipe in walk(sink)):
        return False
    try:
        with holding(MAY_OPEN, False):
            return length(sink) >= 0
    except Exception:  # of a length of the user, too
        return False


def with_whole_shuffles(sink: Pipe) -> Pipe:
    """Return a graph whose ``shuffle()`` pipes permute all items of cases in a known number."""

    def whole(old: Pipe, here: Pipe) -> Pipe:
        if type(here) is not Shuffler:
            return here
        twin: Any = copy_pipe(here)
        twin.__class__ = ShufflerIterDataPipe
        return twin  # type: ignore[no-any-return]

    return rebuild(sink, whole)
