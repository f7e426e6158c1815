"""Where a loader is, as a few numbers: JSON, no pickle, no code.

A state counts the batches that were delivered. With the seed and the epoch that is all
there is to know: the plan is made again from them, under any number of workers.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..core.errors import StateMismatch
from ..reading_services.abilities import Checkpointing, Refusing, Restoring
from ..reading_services.place import Run
from ..reading_services.seeds.seed_generator import MAX_SEED
from ..reading_services.work import Replicated, Work
from .order import refuse_other_order
from .outline import Outline

VERSION = 1
_LATER = ("service", "failed", "pipes", "cases", "order")


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

    def to_json(self) -> dict[str, Any]:
        """Return the state as plain data."""
        told = asdict(self)
        if not self.service:
            del told["service"]
        return told

    @property
    def of_service(self) -> bytes:
        """The state of the reading service; empty if it has none."""
        try:
            return base64.b64decode(self.service, validate=True)
        except ValueError as error:
            msg = f"the state of the reading service is no base 64: {error}"
            raise StateMismatch(msg, do="Pass what state_dict() returned.") from error

    @classmethod
    def from_json(
        cls, data: Mapping[str, Any], *, outline: Outline, order: str, shares: int
    ) -> State:
        """Return the state in ``data`` if it belongs to this graph, data set and order.

        Raises
        ------
        StateMismatch
            Naming what differs.
        """
        fields = set(cls.__dataclass_fields__)
        # States that were saved before failures were counted, and pipes told, have no such field.
        if {*data, *_LATER} != fields:
            msg = f"a state has {sorted(fields - {'service'})}, got {sorted(data)}"
            raise StateMismatch(msg, do="Pass what state_dict() returned.")
        state = cls(**{**data, "ahead": _runs(data["ahead"])})
        numbers: tuple[Any, ...] = (
            state.seed,
            state.epoch,
            state.next_batch,
            state.failed,
            *(number for run in state.ahead for number in run),
        )
        if not all(type(n) is int and n >= 0 for n in numbers) or state.seed >= MAX_SEED:
            msg = "seed (below 2**64), epoch, next_batch, failed and ahead are whole numbers, got "
            raise StateMismatch(f"{msg}{numbers!r:.200}", do="Pass what state_dict() returned.")
        texts = (state.graph, state.data, state.pipes, state.cases, state.service)
        order_is_text = state.order is None or isinstance(state.order, str)
        if type(state.shares) is not int or not order_is_text or not _all_text(texts):
            msg = "shares is a whole number; graph, data, pipes, cases, order and service are text"
            raise StateMismatch(msg, do="Pass what state_dict() returned.")
        if state.version != VERSION:
            msg = f"the state has version {state.version}, this voxpipe reads {VERSION}"
            raise StateMismatch(msg)
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


def _all_text(values: Sequence[Any]) -> bool:
    return all(isinstance(value, str) for value in values)


def _runs(told: Any) -> tuple[Run, ...]:
    """Return the runs of a state; in one that was saved before there were any, single numbers."""
    try:
        runs = sorted(Run(*run) if isinstance(run, Sequence) else Run(run) for run in told)
        if not all(run.length > 0 and run.step > 0 for run in runs):
            raise TypeError("a run has numbers, at a distance")
        return tuple(runs)
    except TypeError as error:
        msg = f"ahead is a list of [first, length, step], got {told!r:.100}"
        raise StateMismatch(msg, do="Pass what state_dict() returned.") from error


def _words(shares: int, whose: str = "") -> str:
    count = abs(shares)
    told = f"{count or 'no'} share{'' if count == 1 else 's'}{whose}"
    return told + (", as they are ready" if shares < 0 else "")


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
    data = service.checkpoint() if isinstance(service, Checkpointing) else None
    return "" if data is None else base64.b64encode(data).decode()


def refuse_for_service(service: Any, state: bytes) -> None:
    """Raise, before anything is changed, unless a service can take its own state back.

    Raises
    ------
    StateMismatch, TypeError
        The service can have none.
    """
    if not state:
        return
    if not isinstance(service, Restoring):
        msg = f"the state holds one of a reading service, and {service!r} has none"
        raise StateMismatch(msg, do="Give the service that it was saved with.")
    if isinstance(service, Refusing):
        service.refuse_state()
