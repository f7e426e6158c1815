"""Makes batches by running pipes that have no instructions, with seeded functions of the user."""

from __future__ import annotations

import contextlib
import copy
import functools
import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterDataPipe
from torch.utils.data.datapipes import _hook_iterator

from ..batching.job import NOWHERE, STEP_OF_THREAD, Job, the_batch
from ..core import CallSite, Sample, Stream
from ..core.errors import LOCATABLE, E, add_location
from ..datapipes import DataPipe
from ..datapipes.epoch import (
    OwnGenerators,
    restore_generator,
    set_epoch,
    set_seed_of,
    state_of_generator,
)
from ..graph import Cut, Pipe, describe, error_location, origin_of, traits_of, walk, with_parents
from ..spatial import LazyPatch
from ..spatial.lazy.read_plan import Provenance
from ..storage.content import PLAIN
from ..volumes import Volume

# Restoring errors of pipes, whose arguments torch changes. It appends lines to a text, and replaces
# all other arguments, e.g. the key of a ``KeyError`` or fields of the user. Just before, it calls a
# function for the arguments of the pipe, which we wrap to save the arguments of the error.

# torch writes this into the message of every error that passes through a pipe.
_TORCH_SAYS = "\nThis exception is thrown by __iter__ of"
_HELD_ARGUMENTS = "_voxpipe_held"
# A private function of torch: without it only texts can be restored.
_ARGUMENTS_METHOD = "_generate_input_args_string"


def as_raised(error: E) -> E:
    """Return ``error`` with its original arguments."""
    args = getattr(error, "__dict__", {}).pop(_HELD_ARGUMENTS, None)
    if not _is_written_over(error):
        return error
    if args is not None:
        error.args = args
    elif isinstance(error, OSError) and error.errno is not None:
        # torch replaced the number by its lines. With these two arguments the error can be
        # pickled, including its file.
        error.args = (error.errno, error.strerror)
    else:
        error.args = (error.args[0].split(_TORCH_SAYS, 1)[0], *error.args[1:])
    return error


def _is_written_over(error: BaseException) -> bool:
    text = error.args[0] if error.args else None
    return isinstance(text, str) and _TORCH_SAYS in text


def _noting(original: Callable[[Any], str]) -> Callable[[Any], str]:
    @functools.wraps(original)
    def note(pipe: Any) -> str:
        error = sys.exc_info()[1]
        if error is not None and not _is_written_over(error):
            error.__dict__[_HELD_ARGUMENTS] = error.args
        return original(pipe)

    return note


_original = getattr(_hook_iterator, _ARGUMENTS_METHOD, None)
if _original is not None and not hasattr(_original, "__wrapped__"):
    setattr(_hook_iterator, _ARGUMENTS_METHOD, _noting(_original))

# The global generators of random, NumPy and torch are seeded for each item for functions of the
# user, and restored after it.

_OWN: set[int] = set()


def own_generators() -> None:
    """Skip restoring in this process, where only items draw: it would take 100 us per item."""
    _OWN.add(os.getpid())


def seed_globals(seed: int, own: Sequence[Any] = ()) -> None:
    """Seed the global generators and ``own`` ones; the graphics card's are left alone."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # NumPy's global generator takes 32 bits
    torch.default_generator.manual_seed(seed)
    for number, generator in enumerate(own):
        # Two objects of one function must not draw the same numbers.
        set_seed_of(generator, Stream(seed, 0, (number,), "own generators").integer())


def states_of_globals() -> tuple[Any, Any, Any]:
    """Return the states of the global generators of random, NumPy and torch."""
    return random.getstate(), np.random.get_state(), torch.get_rng_state()


def restore_globals(states: tuple[Any, Any, Any]) -> None:
    """Set the states of the global generators."""
    random.setstate(states[0])
    np.random.set_state(states[1])
    torch.set_rng_state(states[2])


@contextlib.contextmanager
def seeded_globals(seed: int, own: Sequence[Any] = ()) -> Iterator[None]:
    """Seed the global generators and ``own`` ones inside the ``with`` block; restore them after."""
    if os.getpid() in _OWN:
        seed_globals(seed, own)
        yield
        return
    states = states_of_globals()
    states_of_own = [state_of_generator(generator) for generator in own]
    seed_globals(seed, own)
    try:
        yield
    finally:
        restore_globals(states)
        for generator, state in zip(own, states_of_own, strict=True):
            restore_generator(generator, state)


_NO_JOB = Job(NOWHERE, ())


class Handoff(IterDataPipe[Any]):
    """Source of a realizing part: yields the items of the current job."""

    def __init__(self) -> None:
        super().__init__()
        self.job = _NO_JOB
        self.number = NOWHERE
        self.seeds: Callable[[int], int] | None = None
        """Seeds of the functions by item of the job; None without functions."""
        self.generators: Sequence[Any] = ()  # generators that the functions hold

    def __iter__(self) -> Iterator[Any]:
        for number, item in enumerate(self.job.items):
            self.number = number
            if self.seeds is not None and number:  # PipeRunner.run() seeds the first
                seed_globals(self.seeds(number), self.generators)
            yield item


class StepIterator(IterDataPipe[Any]):
    """Yields the items of one pipe of a realizing part, and notes the step while it runs."""

    def __init__(self, parent: Pipe, number: int, handoff: Handoff, *, whole: bool) -> None:
        super().__init__()
        self.parent = parent
        self.number = number
        self.handoff = handoff
        self.whole = whole

    def __iter__(self) -> Iterator[Any]:
        items = iter(self.parent)
        while True:
            here = STEP_OF_THREAD.get()
            step, item = here.read()
            here.at(self.number, NOWHERE if self.whole else self.handoff.number + 1)
            try:
                output = next(items)
            except StopIteration:
                return
            except LOCATABLE as error:
                raise add_location(error, None, *self._at())  # noqa: B904  the very same error
            finally:
                here.at(step, item)
            yield output

    def _at(self) -> tuple[str, str]:
        """Return case and place of the current item; empty texts if there are several."""
        number = max(0, self.handoff.number)
        at = self.handoff.job.items[number:][:1]
        if self.whole or not at:
            return "", ""
        return str(getattr(at[0], "case", "")), self.handoff.job.place(number)


class PipeRunner:
    """Makes batches of jobs by running the realizing pipes from number ``first``; needs torch."""

    def __init__(self, split: Cut, first: int = 0) -> None:
        self.handoff = Handoff()
        self.sink: Pipe = self.handoff
        self._gathers_before = whole = any(
            traits_of(pipe).group for pipe in split.realizing[:first]
        )
        for number, pipe in enumerate(split.realizing[first:], first):
            if isinstance(pipe, DataPipe) and pipe.instructions() == ():
                continue  # it does nothing within a batch, e.g. prefetch()
            whole = whole or bool(traits_of(pipe).group)
            twin: Any = with_parents(pipe, [self.sink])
            if traits_of(twin).group and traits_of(twin).drop_last:
                twin.drop_last = False
            self.sink = twin
            if not traits_of(pipe).watches:
                self.sink = StepIterator(self.sink, number, self.handoff, whole=whole)
        self.last = written_last([*split.realizing])
        self._runs_user_code = any(traits_of(pipe).runs_user_code for pipe in split.realizing)
        self._filters = split.filters
        self._run: tuple[int, int] | None = None
        self._own: OwnGenerators | None = None  # where functions of the user run

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "handoff": Handoff(), "_run": None, "_own": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.handoff = next(pipe for pipe in walk(self.sink) if isinstance(pipe, Handoff))

    def run(self, job: Job, seed: int, epoch: int, items: Sequence[Any] | None = None) -> Any:
        """Return the batch of ``job``; ``items`` are the outputs of pipes that ran before."""
        # Global generators are seeded from (seed, epoch, item) before a user's function gets an
        # item, so its numbers depend neither on the worker nor on the number of ranks.
        here = job if items is None else replace(job, items=tuple(items))
        spare: Any = None
        if self._run != (seed, epoch):
            set_epoch(self.sink, seed, epoch)
            self._run = (seed, epoch)
            if self._runs_user_code:  # an object may have got another one since the last epoch
                self._own = OwnGenerators(walk(self.sink))
                with contextlib.suppress(TypeError):
                    spare = _copy_of(here.items)
        outputs = self._outputs(job, here, seed, epoch)
        if self._own is not None and self._own.repeats(may_repeat=spare is not None):
            outputs = self._outputs(job, replace(here, items=spare), seed, epoch)
        return the_batch(job, outputs, filters=self._filters)

    def _outputs(self, job: Job, here: Job, seed: int, epoch: int) -> list[Any]:
        self.handoff.job, self.handoff.number = here, NOWHERE
        guard: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
        if self._own is not None:
            self.handoff.generators = self._own.generators
            self.handoff.seeds = seeds = partial(_seed_of_item, job, seed, epoch)
            # A pipe that gathers reads all items before a function gets the batch.
            first = seeds(len(job.items) - 1 if self._gathers_before else 0)
            guard = seeded_globals(first, self._own.generators)
        try:
            with guard:
                return list(self.sink)
        except LOCATABLE as error:
            at = error_location(error)
            raise add_location(as_raised(error), at, job.cases(), job.place())  # noqa: B904
        finally:
            self.handoff.job, self.handoff.seeds = _NO_JOB, None
            STEP_OF_THREAD.get().at(NOWHERE)


def _copy_of(thing: Any) -> Any:
    """Return a copy of items; TypeError where they are no plain data, and may be changed."""
    if isinstance(thing, (np.ndarray, torch.Tensor)):
        return copy.deepcopy(thing)
    if type(thing) in (tuple, list):
        return type(thing)(map(_copy_of, thing))
    if type(thing) in (dict, Sample):
        twin = copy.copy(thing)
        twin.update((key, _copy_of(value)) for key, value in thing.items())
        return twin
    if isinstance(thing, (*PLAIN, np.generic, LazyPatch, Provenance, Volume)):
        return thing
    raise TypeError(type(thing).__qualname__)


def written_last(pipes: list[Pipe]) -> CallSite | None:
    """Return the call site of the last pipe that yields items."""
    chain = [pipe for pipe in pipes if not traits_of(pipe).watches]
    return (origin_of(chain[-1]) or CallSite(describe(chain[-1]), "", 0)) if chain else None


def _seed_of_item(job: Job, seed: int, epoch: int, item: int) -> int:
    return Stream(seed, epoch, (job.number(item),), "user functions").integer()
