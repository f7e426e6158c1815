"""The state of a loader as a few numbers: JSON, no pickle, no code.

A state counts the batches that were delivered. With the seed and the epoch that is all
there is to know: the plan is made again from them, under any number of workers.

Two hashes decide whether a state belongs to a loader. A name and a short hash for each pipe, and
a hash for each of a few dozen runs of cases, locate the difference of a foreign one. They are
bounded, so that a state stays small for any chain and data.

A state belongs to the chain as it was written: most adapters change neither the items nor their
order. One that does (``Shuffle(False)``, a function that filters) changes the meaning of a place.
So a state also holds the difference between the order of the graph that ran and the written one.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, islice, zip_longest
from typing import Any, NamedTuple

from ..adapters.fuse import NOT_LAZY
from ..core.call_site import shorten
from ..core.context import holding
from ..core.errors import BadState, StateMismatch
from ..core.lru_cache import cached_property
from ..core.redact import public_text
from ..core.stream import MAX_EPOCH
from ..datapipes.datapipe import MAY_OPEN
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
from ..reading_services import ReadingService
from ..reading_services.planner import BatchRun, DeliveredBatches, Position
from ..reading_services.replica import MAX_SEED
from ..reading_services.work import ReplicatedWork, Work

VERSION = 1
# A state takes 4 kB at most (see :class:`Outline`), so a text of it far less than this.
_MOST_LETTERS = 64 * 1024
# As many as there are gaps: batches that are under way at once, some per worker.
_MOST_RUNS = 4096
_DO = "Pass what state_dict() returned."


@dataclass(frozen=True)
class State:
    """The position of a loader."""

    seed: int
    epoch: int  # epoch of the next batch
    next_batch: int  # the first batch of that epoch that was not delivered
    ahead: tuple[
        BatchRun, ...
    ]  # runs of later ones that were, where batches come as they are ready
    shares: int
    """0 where any worker can do any batch; else among how many the graph was divided. Below 0 if
    its items came as they were ready: so it was always saved, and states are kept."""
    graph: str  # fingerprint of the graph as the user wrote it
    data: str  # fingerprint of the list of cases
    failures: int = 0  # items of that epoch that failed so far, which ``OnError`` has a budget for
    version: int = VERSION
    pipes: str = ""  # name and short hash of each pipe, to say which one differs
    cases: str = ""  # the number of cases and short hashes of them, to say which ones differ
    order: str | None = None  # changes of the order by adapters; None if unknown
    service: str = ""  # state of a reading service that has one of its own, in base 64

    def to_json(self) -> dict[str, Any]:
        """Return the state as plain data."""
        return {key: value for key, value in asdict(self).items() if key != "service" or value}

    @property
    def position(self) -> Position:
        """Where in the run it was."""
        return Position(self.epoch, DeliveredBatches(self.next_batch, self.ahead), self.failures)

    @classmethod
    def from_json(cls, data: Any, *, outline: Outline, order: str, shares: int) -> State:
        """Return the state in ``data`` if it belongs to this graph, data set and order."""
        # BadState names the wrong field, and StateMismatch the difference.
        fields = _check(_plain(data))
        state = cls(**{**fields, "ahead": _runs(fields["ahead"])})
        outline.refuse(state.graph, state.data, state.pipes, state.cases)
        refuse_other_order(state.order, order)
        if state.shares != shares:
            theirs, own = _words(state.shares, " of the graph"), _words(shares)
            msg = f"the state was saved with {theirs}, this loader has {own}"
            workers = str(abs(state.shares)) + (', order="as_ready"' if state.shares < 0 else "")
            raise StateMismatch(msg, do=_DO_SHARES.format(workers) if state.shares else _DO_SPLIT)
        return state

    def refuse_beyond(self, count: Callable[[], int]) -> None:
        """Raise BadState for a batch after the last one, where headers need not be read for it."""
        try:
            with holding(MAY_OPEN, False):
                batches = count()
        except TypeError:  # no len()
            return
        if self.next_batch > batches:
            msg = f"the next batch of the state is {self.next_batch}, of an epoch of {batches}"
            raise BadState(msg, do="Load the state that state_dict() returned, as it was.")


def saved_shares(service: ReadingService, work: Work) -> int:
    """Return a state's number of processes among which a graph is divided."""
    shares = service.shares(work)
    return -shares if isinstance(work, ReplicatedWork) and work.as_ready else shares


class _Field(NamedTuple):
    form: str
    is_sound: Callable[[Any], bool]
    is_optional: bool = False
    """Whether states may lack it: those that were saved before there was such a field."""


def _is_count(value: Any, below: int = MAX_EPOCH) -> bool:
    return type(value) is int and 0 <= value < below


def _is_text(value: Any) -> bool:
    return type(value) is str and len(value) <= _MOST_LETTERS


def _is_base64(value: Any) -> bool:
    try:
        return type(value) is str and base64.b64decode(value, validate=True) is not None
    except ValueError:
        return False


def _is_run(value: Any) -> bool:
    """Whether it is ``[first, length, step]``, or, of an earlier version, a single number."""
    numbers = value if type(value) in _LISTS else [value]
    if not 1 <= len(numbers) <= len(BatchRun._fields) or not all(map(_is_count, numbers)):
        return False
    run = BatchRun(*numbers)
    return run.length > 0 and run.step > 0 and run.end < MAX_EPOCH


def _are_runs(value: Any) -> bool:
    if type(value) not in _LISTS or len(value) > _MOST_RUNS:
        return False
    # Those of shares are as far apart as there are shares, all others have no gaps.
    return all(map(_is_run, value)) and len({run.step for run in _runs(value)} - {1}) <= 1


_NUMBER = "one of the whole numbers from 0 to below 2**62"
_TEXT = "text of a few thousand letters at most"
_SCHEMA = {
    "version": _Field("a whole number", lambda value: type(value) is int),
    "seed": _Field(
        "one of the whole numbers from 0 to below 2**64", partial(_is_count, below=MAX_SEED)
    ),
    "epoch": _Field(_NUMBER, _is_count),
    "next_batch": _Field(_NUMBER, _is_count),
    "failures": _Field(_NUMBER, _is_count, is_optional=True),
    "ahead": _Field("a list of [first, length, step]", _are_runs),
    "shares": _Field("a whole number", lambda v: type(v) is int and abs(v) < 2**63),
    "graph": _Field(_TEXT, _is_text),
    "data": _Field(_TEXT, _is_text),
    "pipes": _Field(_TEXT, _is_text, is_optional=True),
    "cases": _Field(_TEXT, _is_text, is_optional=True),
    "order": _Field(f"{_TEXT}, or null", lambda v: v is None or _is_text(v), is_optional=True),
    "service": _Field("base 64", _is_base64, is_optional=True),
}


# The types of JSON and of state_dict(). No method of another class is called: an object of a
# derived class may return anything.
_LEAVES = frozenset((str, int, float, bool, type(None)))
_LISTS = frozenset((list, tuple, BatchRun))
_DICTS = frozenset((dict, OrderedDict))


def _plain(data: Any) -> Mapping[str, Any]:
    """Return a state in which everything is of the very classes that JSON has."""
    # Something of another class, e.g. a number of NumPy, is named by its field, not shown.
    if type(data) not in _DICTS:
        got = shorten(data) if type(data) in _LEAVES else type(data).__name__
        raise BadState(f"a state is the dict that state_dict() returned, got {got}")
    for name, value in data.items():
        if type(name) is not str:
            raise BadState(f"a field of a state has a name of {type(name).__name__}", do=_DO)
        waiting, ids = [value], set[int]()
        while waiting:
            one = waiting.pop()
            kind = type(one)
            if kind in _LEAVES or id(one) in ids:
                continue
            ids.add(id(one))
            if kind in _DICTS:
                waiting += [*one.keys(), *one.values()]
            elif kind in _LISTS:
                waiting += one
            else:
                form = _SCHEMA[name].form if name in _SCHEMA else "none"
                raise BadState(f"{name} of a state is {form}, got {kind.__name__}", do=_DO)
    return data  # type: ignore[no-any-return]


def _check(data: Mapping[str, Any]) -> Mapping[str, Any]:
    version = data.get("version", VERSION)
    if type(version) is int and version != VERSION:
        # First of all: its other fields may have other forms.
        what = f"the state has version {shorten(version)}, this voxpipe reads {VERSION}"
        raise BadState(what)
    names = {name for name, field in _SCHEMA.items() if not field.is_optional}
    if not names <= data.keys() <= _SCHEMA.keys():
        fields = [name for name in _SCHEMA if name != "service"]
        raise BadState(f"a state has {fields}, got {shorten(list(data))}", do=_DO)
    for name, value in data.items():
        form, is_sound, _ = _SCHEMA[name]
        if not is_sound(value):
            raise BadState(f"{name} of a state is {form}, got {shorten(value)}", do=_DO)
    return data


def _runs(entries: Sequence[Any]) -> tuple[BatchRun, ...]:
    return tuple(
        sorted(BatchRun(*run) if isinstance(run, Sequence) else BatchRun(run) for run in entries)
    )


def _words(shares: int, whose: str = "") -> str:
    count = abs(shares)
    text = f"{count or 'no'} share{'' if count == 1 else 's'}{whose}"
    return text + (", as they are ready" if shares < 0 else "")


_DO_SPLIT = "Give the reading service that it was saved with: that one split the graph."
_DO_SHARES = (
    "Run with num_workers={} (in all ranks together), or let the graph be split, and any number "
    "goes on: explain() names the pipe that is in the way."
)


def checkpoint_of(service: Any) -> str:
    """Return the state of a reading service in base64; empty if it has none of its own."""
    data = service.checkpoint() if hasattr(service, "checkpoint") else None
    return "" if data is None else base64.b64encode(data).decode()


def restorer(service: Any, checkpoint: str) -> Callable[[], None]:
    """Return a function that restores a service's state; raise if the service has none."""
    if not checkpoint:
        return lambda: None
    if not hasattr(service, "restore"):
        msg = f"the state holds one of a reading service, and {service!r} has none"
        raise StateMismatch(msg, do="Give the service that it was saved with.")
    if hasattr(service, "refuse_state"):
        try:
            service.refuse_state()
        except TypeError as error:
            raise BadState(str(error)) from error
    return partial(service.restore, base64.b64decode(checkpoint))


def in_folders(
    read: Callable[[Mapping[str, str] | None], State], folders: Mapping[str, str] | None
) -> State:
    """Return the state that ``read`` gives for data that were moved from ``folders``."""
    if folders is not None and not isinstance(folders, Mapping):
        raise TypeError(f"folders is {{saved folder: folder here}}, got {shorten(folders)}")
    try:
        return read(folders)
    except StateMismatch as error:
        inverse = {here: before for before, here in (folders or {}).items()}
        try:
            read(inverse)
        except StateMismatch:
            raise error from None
        msg = f"folders={shorten(folders)} is the wrong way round"
        raise StateMismatch(msg, do=f"Give {{saved: here}}: folders={inverse}.") from None


_DO_CHAIN = (
    "Settings and order of the pipes must be the same, and the public attributes of objects in "
    "them; attributes whose names begin with an underscore may differ."
)
_FOLDERS = "If the same files are in another folder, give folders={saved: here} with the state."
_DO_CASES = f"The list of cases must be the same, in the same order. {_FOLDERS}"
# About 20 bytes each: 2 kB of the 4 that a state may have.
_MOST_PIPES = 100
# Four bytes each.
_MOST_CASE_RUNS = 64
# A source of more cases has one hash: the texts of a million take seconds.
_MOST_TEXTS = 200_000


@dataclass(frozen=True)
class Outline:
    """The hashes of a chain and its cases."""

    sink: Pipe
    graph: str
    pipes: str  # name and short hash of the first pipes, sources first

    @classmethod
    def of(cls, sink: Pipe) -> Outline:
        """Return the outline of a chain as it is now; objects in it may change as they run."""
        first = islice(walk(sink), _MOST_PIPES)
        pipes = " ".join(f"{chained_name(pipe)}:{fingerprint_of_pipe(pipe)}" for pipe in first)
        return cls(sink, fingerprint(sink), pipes)

    def on(self, sink: Pipe) -> Outline:
        """Return the outline of the same chain with the cases of ``sink``."""
        return replace(self, sink=sink)

    def has_data(self, data: str) -> bool:
        """Whether the cases have this hash; True where they were not hashed or listed yet."""
        own = [vars(source) for source in _sources(self.sink)]
        is_list = all(type(one.get("cases")) in (list, tuple) for one in own)
        is_unseen = any("_listing" in one and one["_listing"].cases is None for one in own)
        return is_unseen or (is_list and "_of_cases" not in vars(self)) or data == self.data

    @property
    def data(self) -> str:
        """Hash of the cases; makes the list, and opens none."""
        return self._of_cases[0]

    @property
    def cases(self) -> str:
        """How many cases there are, and a short hash of each run of them; empty if unknown."""
        return self._of_cases[1]

    @cached_property
    def _of_cases(self) -> tuple[str, str]:
        sources: list[Any] = [pipe for pipe in walk(self.sink) if hasattr(type(pipe), "data_hash")]
        with_texts = list(self._sources_with_texts())
        count = sum(map(len, with_texts))
        size = -(-count // _MOST_CASE_RUNS)
        hashes = _hashes_of_runs(self._texts(), size) if count else []
        others = [pipe.data_hash() for pipe in sources if pipe not in with_texts]
        data = "".join([str(count), *hashes, *others]).encode()
        digest = hashlib.blake2b(data, digest_size=8).hexdigest()
        texts = "".join(one[:_DIGITS] for one in hashes)  # a short hash of each run of cases
        return digest, f"{count}/{size}/{texts}" if count else ""

    def hash_lists(self) -> None:
        """Hash the cases, unless a sequence makes them when asked."""
        if all(isinstance(getattr(p, "cases", []), (list, tuple)) for p in walk(self.sink)):
            self.data  # noqa: B018  kept

    def _sources_with_texts(self) -> Iterator[Any]:
        every = (pipe for pipe in _sources(self.sink) if getattr(pipe, "hashes_texts", True))
        return (pipe for pipe in every if len(pipe) <= _MOST_TEXTS)

    def _texts(self) -> Iterator[str]:
        return chain.from_iterable(pipe.data_texts() for pipe in self._sources_with_texts())

    def refuse(self, graph: str, data: str, pipes: str, cases: str) -> None:
        """Raise StateMismatch, naming the pipe or the cases, unless a state is of this chain."""
        if graph != self.graph:
            msg = f"the state was saved for graph {graph}, this one is {self.graph}"
            what, pipe = self._difference(pipes)
            is_source = pipe is not None and hasattr(type(pipe), "data_hash")
            do = f"{_DO_CHAIN} {_FOLDERS}" if is_source else _DO_CHAIN
            error = StateMismatch(f"{msg}: {what}" if what else msg, do=do)
            raise error.at(None if pipe is None else origin_of(pipe))
        if data != self.data:
            msg = f"the state was saved for data {data}, these are {self.data}"
            what = self._other_cases(cases)
            raise StateMismatch(f"{msg}: {what}" if what else msg, do=_DO_CASES)

    def _difference(self, pipes: str) -> tuple[str, Pipe | None]:
        """Return the first pipe where the chains differ; empty if the state has no names."""
        own = zip(self.pipes.split(), walk(self.sink), strict=False)
        pairs = zip_longest(pipes.split(), own) if pipes else ()
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
        return ("the same pipes are connected in another way" if pipes else ""), None

    def _other_cases(self, cases: str) -> str:
        """Return where the lists of cases begin to differ; nothing if the state does not know."""
        try:
            count, size, hashes = cases.split("/")
            runs = "".join(one[:_DIGITS] for one in _hashes_of_runs(self._texts(), int(size)))
        except ValueError:  # an older state, or one without cases
            return ""
        texts = list(self._texts())
        more = f"there were {count} cases, and are {len(texts)}"
        differences = [] if len(texts) == int(count) else [more]
        places = range(0, max(len(hashes), len(runs)), _DIGITS)
        run = next((n for n in places if hashes[n : n + _DIGITS] != runs[n : n + _DIGITS]), None)
        if run is not None:
            first = run // _DIGITS * int(size)
            last = min(first + int(size), len(texts)) - 1
            of = f"case {first}" if last <= first else f"one of the cases {first} to {last}"
            now = f", now {public_text(texts[first])}" if last == first else ""
            differences.append(f"the first that differs is {of}{now}")
        return "; ".join(differences)


_DIGITS = 4


def _sources(sink: Pipe) -> Iterator[Any]:
    return (pipe for pipe in walk(sink) if hasattr(type(pipe), "data_texts"))


def _hashes_of_runs(texts: Iterator[str], size: int) -> list[str]:
    """Return a hash of each run of so many cases."""
    if size < 1:
        raise ValueError(f"a run has at least one case, got {size}")
    runs = iter(lambda: list(islice(texts, size)), [])
    return [hashlib.blake2b("\0".join(run).encode(), digest_size=8).hexdigest() for run in runs]


def _name(entry: str) -> str:
    return entry.rsplit(":", 1)[0]


# About 25 letters each: half a kilobyte of the four that a state may have.
_MOST_CHANGES = 20
_LONGEST_ORDER = 1000
_DO_ORDER = (
    "Give the loader the adapters that the state was saved with; set others by loader.adapters "
    "when that epoch has ended."
)


def changes_of_order(original: Pipe, run: Pipe) -> str:
    """Return the pipes, as text, by which the order of two graphs differs; empty if it does not.

    They end with a hash of all pipes that decide on the order, for comparison: a shuffle before a
    batch is not one after it.
    """
    before, after = list(_deciding(original)), list(_deciding(run))
    if before == after:
        return ""
    absent = {name: 1 for name, _, _ in Counter(before) - Counter(after)}
    come = {name: off for name, _, off in Counter(after) - Counter(before)}
    both = [f"{n}() {'turned off' if off else 'changed'}" for n, off in come.items() if n in absent]
    new = [f"with {name}()" for name in come if name not in absent]
    old = [f"without {name}()" for name in absent if name not in come]
    words = ", ".join([*both, *new, *old][:_MOST_CHANGES]) or "with pipes in another order"
    return f"{words}={hashlib.blake2b(repr(after).encode(), digest_size=8).hexdigest()}"


def refuse_other_order(order: str | None, own: str) -> None:
    """Raise StateMismatch if the adapters of a state made another order than a loader's."""
    if order is None or order == own:
        return
    texts = (each.rpartition("=")[0][:_LONGEST_ORDER] for each in (order, own))
    before, now = (text or "as written" for text in texts)
    if before == now:
        now = "these pipes in other places"
    msg = f"the state was saved {before}, and this loader runs {now}: "
    raise StateMismatch(msg + "adapters changed the items, or their order", do=_DO_ORDER)


def _deciding(sink: Pipe) -> Iterator[tuple[str, str, bool]]:
    """Yield name, hash and whether it is off, of each pipe that decides which items come, when."""
    for pipe in walk(sink):
        traits = traits_of(pipe)
        # Pipes that make items ahead, or stay in this process, keep the order.
        decides = not (traits.per_item or traits.watches or traits.ahead or traits.main_process)
        if decides or vars(pipe).get("why") == NOT_LAZY:  # a flush changes voxels
            yield chained_name(pipe), fingerprint_of_pipe(pipe), is_switched_off(pipe)
