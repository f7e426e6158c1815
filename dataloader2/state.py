"""Where a loader is, as a few numbers: JSON, no pickle, no code.

A state counts the batches that were delivered. With the seed and the epoch that is all
there is to know: the plan is made again from them, under any number of workers.
"""

from __future__ import annotations

import base64
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

from ..core.call_site import shorten
from ..core.errors import BadState, StateMismatch
from ..core.stream import MAX_EPOCH
from ..reading_services.place import Place, Run
from ..reading_services.replica import MAX_SEED
from ..reading_services.work import Replicated, Work
from .outline import Outline, refuse_other_order
from .position import Position

VERSION = 1
# A state takes 4 kB at most (``outline.py``), so a text of it far less than this.
_MOST_LETTERS = 64 * 1024
# As many as there are gaps: batches that are under way at once, some per worker.
_MOST_RUNS = 4096
_DO = "Pass what state_dict() returned."


@dataclass(frozen=True)
class State:
    """The position of a loader."""

    seed: int
    """Seed of the run."""
    epoch: int
    """Epoch of the next batch."""
    next_batch: int
    """The first batch of that epoch that was not delivered."""
    ahead: tuple[Run, ...]
    """Runs of later ones that were, where batches come as they are ready."""
    shares: int
    """0 where any worker can do any batch; else among how many the graph was divided. Below 0 if
    its items came as they were ready: so it was always saved, and states are kept."""
    graph: str
    """Fingerprint of the graph as the user wrote it."""
    data: str
    """Fingerprint of the list of cases."""
    failed: int = 0
    """Items of that epoch that failed so far, which ``OnError`` has a budget for."""
    version: int = VERSION
    """Version of this format."""
    pipes: str = ""
    """Name and short hash of each pipe, to say which one differs."""
    cases: str = ""
    """The number of cases and short hashes of them, to say which ones differ."""
    order: str | None = None
    """What adapters changed of the order; None if that is not known."""
    service: str = ""
    """State of a reading service that has one of its own, in base 64."""

    @classmethod
    def at(
        cls, here: Position, seed: int, outline: Outline, order: str, shares: int, service: str
    ) -> State:
        """Return the state of a loader at a position of a run."""
        return cls(
            seed=seed,
            epoch=here.epoch,
            next_batch=here.place.next,
            ahead=here.place.ahead,
            shares=shares,
            graph=outline.graph,
            data=outline.data,
            failed=here.failed,
            pipes=outline.pipes,
            cases=outline.cases,
            order=order,
            service=service,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the state as plain data."""
        fields = asdict(self)
        if not self.service:
            del fields["service"]
        return fields

    @property
    def position(self) -> Position:
        """Where in the run it was."""
        return Position(self.epoch, Place(self.next_batch, self.ahead), self.failed)

    @property
    def of_service(self) -> bytes:
        """The state of the reading service; empty if it has none."""
        return base64.b64decode(self.service)

    @classmethod
    def from_json(cls, data: Any, *, outline: Outline, order: str, shares: int) -> State:
        """Return the state in ``data`` if it belongs to this graph, data set and order.

        Raises
        ------
        BadState
            It is no state: naming the field. Nothing of it is used before all of it is checked.
        StateMismatch
            Naming what differs.
        """
        fields = _checked(_plain(data))
        state = cls(**{**fields, "ahead": _runs(fields["ahead"])})
        outline.refuse(state.graph, state.data, state.pipes, state.cases)
        refuse_other_order(state.order, order)
        if state.shares != shares:
            saved, own = _words(state.shares, " of the graph"), _words(shares)
            msg = f"the state was saved with {saved}, this loader has {own}"
            raise StateMismatch(msg, do=_as_before(state.shares))
        return state


def saved_shares(shares: int, work: Work) -> int:
    """Return how a state tells among how many processes a graph is divided."""
    return -shares if isinstance(work, Replicated) and work.as_ready else shares


class _Field(NamedTuple):
    """What a field of a state is."""

    wanted: str
    """In words."""
    is_sound: Callable[[Any], bool]
    """Whether a value is that."""
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
    if not 1 <= len(numbers) <= len(Run._fields) or not all(map(_is_count, numbers)):
        return False
    run = Run(*numbers)
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
    "failed": _Field(_NUMBER, _is_count, is_optional=True),
    "ahead": _Field("a list of [first, length, step]", _are_runs),
    "shares": _Field("a whole number", lambda value: type(value) is int),
    "graph": _Field(_TEXT, _is_text),
    "data": _Field(_TEXT, _is_text),
    "pipes": _Field(_TEXT, _is_text, is_optional=True),
    "cases": _Field(_TEXT, _is_text, is_optional=True),
    "order": _Field(f"{_TEXT}, or null", lambda v: v is None or _is_text(v), is_optional=True),
    "service": _Field("base 64", _is_base64, is_optional=True),
}


# What JSON holds, and what state_dict() returns. Of no other class a method is called: an object
# of one that is derived from these may say of itself what it likes.
_LEAVES = frozenset((str, int, float, bool, type(None)))
_LISTS = frozenset((list, tuple, Run))
_DICTS = frozenset((dict, OrderedDict))


def _plain(data: Any) -> Mapping[str, Any]:
    """Return a state in which everything is of the very classes that JSON has.

    Raises
    ------
    BadState
        Something is of another, e.g. a number of NumPy; named by its field, not shown.
    """
    if type(data) not in _DICTS:
        got = shorten(data) if type(data) in _LEAVES else type(data).__name__
        raise BadState(f"a state is the dict that state_dict() returned, got {got}")
    for name, value in data.items():
        if type(name) is not str:
            raise BadState(f"a field of a state has a name of {type(name).__name__}", do=_DO)
        waiting, seen = [value], set[int]()
        while waiting:
            one = waiting.pop()
            kind = type(one)
            if kind in _LEAVES or id(one) in seen:
                continue
            seen.add(id(one))
            if kind in _DICTS:
                waiting += [*one.keys(), *one.values()]
            elif kind in _LISTS:
                waiting += one
            else:
                wanted = _SCHEMA[name].wanted if name in _SCHEMA else "none"
                raise BadState(f"{name} of a state is {wanted}, got {kind.__name__}", do=_DO)
    return data  # type: ignore[no-any-return]


def _checked(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a state of which every field is what it should be."""
    version = data.get("version", VERSION)
    if type(version) is int and version != VERSION:
        # First of all: its other fields may have other forms.
        what = f"the state has version {shorten(version)}, this voxpipe reads {VERSION}"
        raise BadState(what)
    needed = {name for name, field in _SCHEMA.items() if not field.is_optional}
    if not needed <= data.keys() <= _SCHEMA.keys():
        fields = [name for name in _SCHEMA if name != "service"]
        raise BadState(f"a state has {fields}, got {shorten(list(data))}", do=_DO)
    for name, value in data.items():
        wanted, is_sound, _ = _SCHEMA[name]
        if not is_sound(value):
            raise BadState(f"{name} of a state is {wanted}, got {shorten(value)}", do=_DO)
    return data


def _runs(saved: Sequence[Any]) -> tuple[Run, ...]:
    """Return the runs of a state, in order."""
    return tuple(sorted(Run(*run) if isinstance(run, Sequence) else Run(run) for run in saved))


def _words(shares: int, whose: str = "") -> str:
    count = abs(shares)
    text = f"{count or 'no'} share{'' if count == 1 else 's'}{whose}"
    return text + (", as they are ready" if shares < 0 else "")


def _as_before(shares: int) -> str:
    """Return how to go on with a state of a graph that is divided among processes."""
    if not shares:
        return "Give the reading service that it was saved with: that one split the graph."
    order = ', order="as_ready"' if shares < 0 else ""
    return (
        f"Run with num_workers={abs(shares)}{order} (in all ranks together), or let the graph be "
        "split, and any number goes on: explain() names the pipe that is in the way."
    )


def checkpoint_of(service: Any) -> str:
    """Return the state of a reading service in base 64; empty if it has none of its own."""
    data = service.checkpoint() if hasattr(service, "checkpoint") else None
    return "" if data is None else base64.b64encode(data).decode()


def refuse_for_service(service: Any, state: bytes) -> None:
    """Raise, before anything is changed, unless a service can take its own state back.

    Raises
    ------
    StateMismatch
        The service can have none.
    """
    if not state:
        return
    if not hasattr(service, "restore"):
        msg = f"the state holds one of a reading service, and {service!r} has none"
        raise StateMismatch(msg, do="Give the service that it was saved with.")
    if hasattr(service, "refuse_state"):
        try:
            service.refuse_state()
        except TypeError as error:
            raise BadState(str(error)) from error
