"""Seeds for the pipes of a graph: some the same on every worker and rank, some its own."""

from __future__ import annotations

import copy

from ..core import Stream
from ..core.validate import validate_int

MAX_SEED = 2**64


class SeedGenerator:
    """Two sequences of seeds out of one: shared among all processes, and this process's own.

    Every seed is a function of the first seed, the worker's path and how many were drawn. The
    numbers are not those of torchdata's generator of this name.

    Parameters
    ----------
    seed
        0 <= seed < 2**64; None to give it later.

    Examples
    --------
    >>> seeds = SeedGenerator(7)
    >>> first, second = seeds.spawn(0), seeds.spawn(1)
    >>> first.generate_shared_seed() == second.generate_shared_seed()
    True
    >>> first.generate_seed() == second.generate_seed()
    False
    """

    def __init__(self, seed: int | None = None) -> None:
        self._seed: int | None = None
        self._worker: tuple[int, ...] = ()
        self._shared = self._own = 0
        if seed is not None:
            self.seed(seed)

    def seed(self, seed: int) -> SeedGenerator:
        """Begin anew from ``seed``; the worker stays the same."""
        self._seed = validate_int("seed", seed, least=0, below=MAX_SEED)
        self._shared = self._own = 0
        return self

    def generate_shared_seed(self) -> int:
        """Return the next seed that every worker and rank draws alike, below 2**63."""
        self._shared += 1
        return self._drawn((self._shared,), "shared")

    def generate_seed(self) -> int:
        """Return the next seed of this worker alone, below 2**63."""
        self._own += 1
        return self._drawn((*self._worker, self._own), "own")

    def spawn(self, worker_id: int, inplace: bool = False) -> SeedGenerator:
        """Return the generator of a worker (this one itself with ``inplace``).

        Raises
        ------
        ValueError
            If ``worker_id`` is negative.
        """
        worker_id = validate_int("worker_id", worker_id, least=0)
        spawned = self if inplace else copy.copy(self)
        spawned._worker = (*self._worker, worker_id)
        spawned._own = 0
        return spawned

    def _drawn(self, identity: tuple[int, ...], name: str) -> int:
        if self._seed is None:
            raise ValueError("a SeedGenerator without a seed has no numbers; call seed(n) first")
        return Stream(self._seed, 0, identity, f"seed generator, {name}").integer()

    def __repr__(self) -> str:
        return f"SeedGenerator(seed={self._seed}, worker={self._worker})"
