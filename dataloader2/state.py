"""Where a loader is, as a few numbers: JSON, no pickle, no code.

A state counts the batches that were delivered. With the seed and the epoch that is all
there is to know: the plan is made again from them, under any number of workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ..core.errors import StateMismatch

VERSION = 1


@dataclass(frozen=True)
class State:
    """The position of a loader."""

    seed: int
    """Seed of the run."""
    epoch: int
    """Epoch of the next batch."""
    next_batch: int
    """The first batch of that epoch that was not delivered."""
    ahead: tuple[int, ...]
    """Later ones that were, where batches come as they are ready."""
    shares: int
    """0 where any worker can do any batch; else among how many the graph was divided."""
    graph: str
    """Fingerprint of the graph as the user wrote it."""
    data: str
    """Fingerprint of the list of cases."""
    version: int = VERSION
    """Version of this format."""

    def to_json(self) -> dict[str, Any]:
        """Return the state as plain data."""
        return asdict(self)

    @classmethod
    def from_json(
        cls, data: Mapping[str, Any], *, graph: str, hash_of_data: str, shares: int
    ) -> State:
        """Return the state in ``data`` if it belongs to this graph and data set.

        Raises
        ------
        StateMismatch
            Naming what differs.
        """
        fields = set(cls.__dataclass_fields__)
        if set(data) != fields:
            msg = f"a state has {sorted(fields)}, got {sorted(data)}"
            raise StateMismatch(msg, do="Pass what state_dict() returned.")
        state = cls(**{**data, "ahead": tuple(data["ahead"])})
        numbers: tuple[Any, ...] = (state.seed, state.epoch, state.next_batch, *state.ahead)
        if not all(isinstance(n, int) and n >= 0 for n in numbers):
            msg = f"seed, epoch, next_batch and ahead are whole numbers, got {numbers}"
            raise StateMismatch(msg, do="Pass what state_dict() returned.")
        if state.version != VERSION:
            msg = f"the state has version {state.version}, this voxpipe reads {VERSION}"
            raise StateMismatch(msg)
        if state.graph != graph:
            msg = f"the state was saved for graph {state.graph}, this one is {graph}"
            do = "The chain was changed: settings and order of the pipes must be the same."
            raise StateMismatch(msg, do=do)
        if state.data != hash_of_data:
            msg = f"the state was saved for data {state.data}, these are {hash_of_data}"
            raise StateMismatch(msg, do="The list of cases must be the same, in the same order.")
        if state.shares != shares:
            msg = f"the state was saved with {state.shares} shares, this loader has {shares}"
            do = "This graph cannot be split (see explain()): keep the number of workers."
            raise StateMismatch(msg, do=do)
        return state
