"""Pipes with running state: what belongs to one pass neither travels to a worker nor is copied."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, ClassVar, TypeVar

import torch

from .background_iterator import Ahead
from .datapipe import DataPipe

D = TypeVar("D", bound="Drawing")
S = TypeVar("S", bound="Shuffling")


class Running(DataPipe):
    """A pipe that keeps something while it is iterated: a buffer, a thread, a generator.

    A copy, or a pipe that was pickled, begins without it. torch's walk over graphs, which
    pickles pipes, never sees it either.
    """

    running: ClassVar[tuple[str, ...]] = ()
    """Names of the attributes that belong to one pass; :meth:`fresh` sets them."""

    def fresh(self) -> None:
        """Set what is named in ``running`` to what it is before the first pass."""

    def __getstate__(self) -> Any:
        state = super().__getstate__()
        return {name: v for name, v in state.items() if name not in self.running}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self.fresh()


class RunningAhead(Running):
    """A pipe with one thread per pass, which a subclass starts in ``__iter__``."""

    running: ClassVar[tuple[str, ...]] = ("_ahead",)
    _ahead: Ahead | None

    def fresh(self) -> None:
        """Begin without a thread."""
        self._ahead = None

    def reset(self) -> None:
        """End the thread of the pass before; torch calls this when a new one begins."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.stop()

    def pause(self) -> None:
        """Return when nothing more is made ahead; what was made can still be taken.

        Raises
        ------
        PrefetchTimeoutError
            The item at hand took too long.
        """
        if self._ahead is not None:
            self._ahead.pause()

    def resume(self) -> None:
        """Go on after :meth:`pause`."""
        if self._ahead is not None:
            self._ahead.resume()

    def shutdown(self) -> None:
        """End the thread, if there is one, and drop what it made; any number of times."""
        self.reset()


class Drawing(Running):
    """A pipe that draws random numbers, others in each pass.

    A loader seeds every pass, so that it is a function of (seed, epoch). If nobody does, the seed
    comes from torch's global generator, as for torch's ``shuffle``.
    """

    running: ClassVar[tuple[str, ...]] = ("_rng",)

    def __init__(self) -> None:
        super().__init__()
        self._seed: int | None = None
        self.fresh()

    def fresh(self) -> None:
        """Make a generator; :meth:`reset` seeds it."""
        self._rng = random.Random()

    def set_seed(self: D, seed: int) -> D:
        """Set the seed of the next pass."""
        self._seed = seed
        return self

    def reset(self) -> None:
        """Seed the generator for a pass; torch calls it when one begins."""
        seed, self._seed = self._seed, None
        if seed is None:
            seed = int(torch.empty((), dtype=torch.int64).random_().item())
        self._rng.seed(self.seed_of_pass(seed))

    def seed_of_pass(self, seed: int) -> int:
        """Return what the generator is seeded with."""
        return seed


class Shuffling(Drawing):
    """A pipe that shuffles, and can be told not to: torch's loaders and ``Shuffle`` do."""

    def __init__(self) -> None:
        super().__init__()
        self._enabled = True

    def set_shuffle(self: S, shuffle: bool = True) -> S:
        """Turn shuffling on or off."""
        self._enabled = shuffle
        return self

    def reset(self) -> None:
        """Seed the generator for a pass; without shuffling nothing is drawn."""
        if self._enabled:
            super().reset()

    def settings(self) -> Any:
        """Return the arguments, and whether it shuffles."""
        return (super().settings(), self._enabled)


def in_new_order(rng: random.Random, items: Sequence[Any]) -> list[Any]:
    """Return the items in a drawn order; the sequence itself stays as it is."""
    return rng.sample(list(items), len(items))
