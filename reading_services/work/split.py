"""A graph that is split: batches are planned in one process, any worker can make any of them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from ...adapters import Hints, Limits
from ...batching import NOWHERE, ErrorPolicy, Instruction, Job, Recipe, Tolerant
from ...core.lru_cache import cached_property
from ...graph import (
    Cut,
    Pipe,
    describe,
    explain_graph,
    origin_of,
    traits_of,
    walk,
)
from ...storage.ranges import Table
from ..shares.part import WHOLE, Part
from .doing import Doing
from .indented import indented
from .instructions import instructions_of
from .pipe_runner import PipeRunner

_RAISES = ErrorPolicy()
_NO_HINTS = Hints()


@dataclass(frozen=True)
class Planned:
    """The planner hands whole batches to whoever is free; any worker can do any batch."""

    cut: Cut
    limits: Limits
    cache_bytes: int = 0
    """Decoded chunks that each process may keep during an epoch, in bytes."""
    ahead_bytes: int | None = None
    """What each process may fetch for later patches and keep, in bytes; None: as usual."""
    joinings: Table = field(default_factory=dict)
    """Which ranges become one request, by key."""
    remote: bool = False
    """Whether volumes lie behind URLs."""
    part: Part = WHOLE
    """Which part of every batch this rank makes."""
    errors: ErrorPolicy = _RAISES
    """What is done about items that cannot be made."""

    hints: Hints = _NO_HINTS
    """What the graph asks for itself."""
    workers: int = 0
    """Worker processes of this rank; 0 for none."""
    threads: int = 1
    """Patches that each worker realizes at once."""

    def maker(self) -> Recipe | PipeRunner | Tolerant:
        """Return what makes batches of jobs, here or in a worker."""
        plain = self.recipe or PipeRunner(self.cut)
        if not self.errors.tolerates:
            return plain
        return Tolerant(plain, self.errors, together=self.part.ranks > 1)

    @property
    def outlives_epochs(self) -> bool:
        """Whether what workers make for one epoch is kept in their memory for the next."""
        every: Any = walk(self.cut.planner)
        return any(getattr(pipe, "stays_in_workers", False) for pipe in every)

    @cached_property
    def recipe(self) -> Recipe | None:
        """Return the realizing part as instructions, without torch; None if a pipe has none."""
        instructions: list[Instruction] = []
        for pipe in self.cut.realizing:
            own = instructions_of(pipe)
            if own is None:
                return None
            instructions += own
        return Recipe(tuple(instructions))

    def at(self, step: int, item: int, job: Job) -> Doing:
        """Return what a worker does, of the numbers that it notes."""
        files = job.files(item)
        what = f"batch {job.index} of {files}" if files else job.place(item)
        if step == NOWHERE:
            return Doing(what)
        seconds = self.seconds_at(step)
        if self.recipe is not None:
            return Doing(what, getattr(self.recipe.instructions[step], "origin", None), seconds)
        pipe = self.cut.realizing[step]
        origin = origin_of(pipe)
        what = what if origin is not None else f"{what}, in {describe(pipe)}"
        return Doing(what, origin, seconds)

    def seconds_at(self, step: int) -> float:
        """Return for how long a process may stay at a step that it notes."""
        # Another epoch of this process may note steps that this one has not.
        return self.limits.at(self._steps[step]) if 0 <= step < len(self._steps) else math.inf

    @cached_property
    def _steps(self) -> tuple[Pipe, ...]:
        """Return the pipe of each step."""
        if self.recipe is None:
            return self.cut.realizing
        return tuple(p for p in self.cut.realizing for _ in instructions_of(p) or ())

    def explain(self, workers: int) -> str:
        """Return which pipes run where."""
        planner = explain_graph(self.cut.planner)
        where = f"in each of {workers} workers" if workers else "in this process"
        lines = ["planned in this process (no voxels)", indented(planner)]
        if self.cut.realizing:
            # Numbering restarts: the realizing part reads what the planner hands over.
            realizing = "\n".join(f"· {text}" for text in _described(self.cut.realizing))
            per = f", {self.cut.group} items a batch" if self.cut.group > 1 else ""
            torch = ", without torch" if workers and self.recipe is not None else ""
            lines += [f"realized {where}{per}{torch}", indented(realizing)]
        elif workers:
            them = f"none of the {workers} workers" if workers > 1 else "no worker"
            lines.append(
                f"{them} is started: every pipe here plans, so nothing is left for workers"
            )
        return "\n".join(lines)


def _described(pipes: tuple[Pipe, ...]) -> list[str]:
    return [describe(pipe) for pipe in pipes if not traits_of(pipe).watches]
