"""A pipe that measures the one above it."""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..batching import Watch
from ..core import IO_COUNTERS, IOCounters
from ..core.counters import PIPE_STATS, PipeCounts
from ..core.memory import MEMORY_SAMPLER, array_bytes, resident_bytes
from ..datapipes.datapipe import DataPipe, length_of
from ..graph import Pipe, Traits, describe, parents_of, rebuilt


@dataclass
class _Inside:
    """What timed pipes further up took while this one waited for them."""

    seconds: float = 0.0
    tally: IOCounters = field(default_factory=IOCounters)
    grown: int = 0


_OUTER: ContextVar[_Inside | None] = ContextVar("timed", default=None)


class Timed(DataPipe):
    """Yield the parent's items, and enter what the parent alone did in the ledger."""

    traits: ClassVar[Any] = Traits(per_item=True, watches=True)

    def __init__(self, parent: Pipe, profile: str, pipe: str, *, memory: bool = False) -> None:
        super().__init__()
        self.memory = memory
        self.parent = parent
        self.profile = profile
        self.pipe = pipe

    def describe(self) -> str:
        """Return what it watches."""
        return f"timed {describe(self.parent)}"

    def instructions(self) -> tuple[Watch, ...]:
        """Return what enters the time of what comes before it."""
        return (Watch(self.profile, self.pipe, self.memory),)

    def __iter__(self) -> Iterator[Any]:
        """Yield the parent's items."""
        parent = iter(self.parent)
        while True:
            outer, inside = _OUTER.get(), _Inside()
            token = _OUTER.set(inside)
            grown = -resident_bytes() if self.memory else 0
            started, before = time.perf_counter(), IO_COUNTERS.snapshot()
            item, ended = None, False
            try:
                item = next(parent)
            except StopIteration:
                ended = True
            finally:
                _OUTER.reset(token)
                seconds, tally = time.perf_counter() - started, IO_COUNTERS.snapshot() - before
                held = {os.getpid(): resident_bytes()} if self.memory else MEMORY_SAMPLER.read()
                grown += sum(held.values()) if self.memory else 0
                own = PipeCounts(
                    int(not ended),
                    seconds - inside.seconds,
                    tally - inside.tally,
                    wait=inside.seconds,
                    bytes_out=array_bytes(item),
                    resident=held,
                    grown=grown - inside.grown,
                )
                PIPE_STATS.add((self.profile, self.pipe), own)
                if outer is not None:
                    outer.seconds += seconds
                    outer.tally = outer.tally + tally
                    outer.grown += grown
            if ended:
                return
            yield item

    def __len__(self) -> int:
        """Return the parent's length; TypeError if that has none."""
        return length_of(self, self.parent)


def untimed(sink: Pipe) -> Pipe:
    """Return a copy of the graph without timed pipes: a profile counts what the user runs."""

    def copied(pipe: Pipe, here: Pipe) -> Pipe:
        if isinstance(pipe, Timed):
            return parents_of(here)[0]
        return copy.copy(pipe) if here is pipe else here

    return rebuilt(sink, copied)
