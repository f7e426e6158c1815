"""What a pipe does, as instructions that need no torch."""

from __future__ import annotations

from collections.abc import Sequence

from ...batching import Instruction
from ...datapipes import DataPipe
from ...graph import (
    Pipe,
)

_RUNS = frozenset({"__iter__", "apply", "gather"})


def instructions_of(pipe: Pipe) -> Sequence[Instruction] | None:
    """Return what a pipe does as instructions; None if it has none that hold for it.

    A subclass that overrides what its parent's instructions stand for is run as it is written.
    """
    if not isinstance(pipe, DataPipe):
        return None
    for names in (vars(pipe), *map(vars, type(pipe).__mro__)):
        if "instructions" in names:
            return pipe.instructions()
        if not _RUNS.isdisjoint(names):
            return None
    return None
