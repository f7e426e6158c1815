"""A graph whose batches are single parts of the making of a batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import IterDataPipe

from ..batching import Instruction, Recipe
from ..batching.parts import Parts, Task
from ..datapipes import DataPipe
from ..graph import Pipe, Traits, traits_of
from ..reading_services import Planned
from ..reading_services.pipe_runner import PipeRunner


class Tasks(IterDataPipe[Task]):
    """Yields tasks, again and again, until ``done(number)`` says that it is enough."""

    traits = Traits()

    def __init__(
        self, tasks: Sequence[Task], done: Callable[[int], bool], imports: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.tasks = list(tasks)
        self.done = done
        self.imports = tuple(imports)

    def __iter__(self) -> Iterator[Task]:
        """Yield the tasks in turn."""
        number = 0
        while self.tasks and not self.done(number):
            yield self.tasks[number % len(self.tasks)]
            number += 1


class Stage(DataPipe):
    """Does one part of each task; yields what is to be handed over.

    Parameters
    ----------
    parent
        Yields tasks.
    parts
        Does them.
    torch
        Whether they need torch, because pipes are among what they run.
    runs_user_code
        Whether functions of the user's are.
    """

    def __init__(self, parent: Pipe, parts: Parts, *, torch: bool, runs_user_code: bool) -> None:
        super().__init__()
        self.parent = parent
        self.parts = parts
        self.torch = torch
        self.runs_user_code = runs_user_code

    @classmethod
    def of(cls, work: Planned, seed: int, epoch: int) -> Stage:
        """Return the stage that does parts of what the realizing part of ``work`` does."""
        maker: Recipe | PipeRunner = work.recipe or PipeRunner(work.cut)
        runs_user_code = any(traits_of(pipe).runs_user_code for pipe in work.cut.realizing)
        parts = Parts(maker, seed, epoch)
        return cls(
            work.cut.planner, parts, torch=work.recipe is None, runs_user_code=runs_user_code
        )

    @property
    def traits(self) -> Traits:
        """Takes tasks one by one, and runs the user's functions if there are any."""
        return Traits(per_item=True, voxels=True, runs_user_code=self.runs_user_code)

    def instructions(self) -> tuple[Instruction, ...] | None:
        """Return the parts, so that they run in workers like those of the loader."""
        return None if self.torch else (self.parts,)

    def __iter__(self) -> Iterator[Any]:
        """Yield the outcome of each task."""
        for task in self.parent:
            yield from self.parts([task])
