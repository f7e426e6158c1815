"""Instructions that make batches without torch, and a note of which one a process is at."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..core import IO_COUNTERS
from ..core.counters import PIPE_STATS, PipeCounts
from ..core.errors import LOCATABLE, GraphError, add_location
from ..core.lru_cache import cached_property
from ..core.memory import MEMORY_SAMPLER, array_bytes, resident_bytes
from .job import Job, Outcome

# Which step of which item this process is at: a few numbers in memory that another may read.
#
# A worker that hangs or dies cannot say what it was doing. So it writes it down before each step,
# two stores of 4 bytes, where the consumer's process can look.

NOWHERE = -1
"""No step, or no single item."""
_BYTES = 8


class Standing:
    """The step and the item at hand.

    Examples
    --------
    >>> standing = Standing()
    >>> standing.at(2, item=1)
    >>> standing.step, standing.item
    (2, 1)
    """

    def __init__(self) -> None:
        self._numbers: NDArray[np.int32] = np.full(2, NOWHERE, np.int32)

    def share(self, memory: NDArray[np.uint8]) -> None:
        """Keep the numbers in ``memory``, at least 8 bytes, from now on."""
        self._numbers = memory[:_BYTES].view(np.int32)
        self.at(NOWHERE)

    @property
    def step(self) -> int:
        """Position of the step in the realizing part."""
        return int(self._numbers[0])

    @property
    def item(self) -> int:
        """Position of the item in its batch; ``NOWHERE`` for the batch as a whole."""
        return int(self._numbers[1])

    def at(self, step: int, item: int = NOWHERE) -> None:
        """Note that ``step`` begins."""
        self._numbers[1] = item
        self._numbers[0] = step


def read(memory: Any) -> tuple[int, int]:
    """Return the step and the item that another process notes in ``memory``."""
    step, item = memory[:_BYTES].view(np.int32)
    return int(step), int(item)


STANDING = Standing()
"""Where this process is. Read of workers only, which make one batch at a time."""


class Transform(Protocol):
    """A frozen, picklable value that makes items of items. It remembers nothing."""

    def __call__(self, items: Sequence[Any]) -> list[Any]:
        """Return what ``items`` become."""


@dataclass(frozen=True)
class Watch:
    """Enter in the ledger what the instructions since the last watch took."""

    profile: str
    """Whose entry."""
    pipe: str
    """The pipe as the user wrote it."""
    memory: bool = False
    """Whether to look at every item by how much the process grew."""


Instruction: TypeAlias = "Transform | Watch"
"""One thing to do with the items at hand."""


@dataclass(frozen=True)
class Recipe:
    """Turns jobs into batches.

    Examples
    --------
    >>> from voxpipe.batching import Gather
    >>> batch = Recipe((Gather(),)).run(Job(0, ({"a": 1}, {"a": 2})), seed=0, epoch=0)
    >>> batch["a"].array.tolist()
    [1, 2]
    """

    instructions: tuple[Instruction, ...]
    """In the order of the chain."""

    @cached_property
    def _looks_at_memory(self) -> bool:
        return any(isinstance(one, Watch) and one.memory for one in self.instructions)

    def run(self, job: Job, seed: int, epoch: int) -> Any:
        """Return the batch of ``job``; seed and epoch are in its items already."""
        items: Sequence[Any] = job.items
        clock = _Clock(memory=self._looks_at_memory)
        try:
            for number, instruction in enumerate(self.instructions):
                STANDING.at(number)
                if isinstance(instruction, Watch):
                    clock.enter(instruction, items)
                else:
                    items = instruction(items)
        except LOCATABLE as error:
            raise add_location(error, case=job.cases(), item=job.place())  # noqa: B904  the very same error
        finally:
            STANDING.at(NOWHERE)
        return the_batch(job, items)


def the_batch(job: Job, made: Sequence[Any], *, filters: bool = False) -> Any:
    """Return the one item that was made of a job; with ``filters`` there may be none.

    Raises
    ------
    GraphError
        If there is none, or more than one.
    """
    if not made and filters:
        return Outcome(None, (), is_empty=True)
    if len(made) != 1:
        of = f" ({job.cases()})" if job.cases() else ""
        msg = f"batch {job.index}{of} became {len(made)} items instead of one"
        raise GraphError(msg, do="A pipe after the cut must yield one item for each it takes.")
    return made[0]


class _Clock:
    """Time and counts since the last watch."""

    def __init__(self, *, memory: bool) -> None:
        self._memory = memory
        self._first = time.perf_counter()
        self._begin()

    def _begin(self) -> None:
        self._held = resident_bytes() if self._memory else 0
        self._started, self._before = time.perf_counter(), IO_COUNTERS.snapshot()

    def enter(self, watch: Watch, items: Sequence[Any]) -> None:
        """Put down what was done since the last time."""
        seconds, tally = time.perf_counter() - self._started, IO_COUNTERS.snapshot() - self._before
        held = {os.getpid(): resident_bytes()} if self._memory else MEMORY_SAMPLER.read()
        entry = PipeCounts(
            len(items),
            seconds,
            tally,
            wait=self._started - self._first,
            bytes_out=array_bytes(items),
            resident=held,
            grown=sum(held.values()) - self._held if self._memory else 0,
        )
        PIPE_STATS.add((watch.profile, watch.pipe), entry)
        self._begin()
