"""Seeds for functions and services that take torchdata's generator of them."""

from __future__ import annotations

from typing import Any

from ..core import Stream
from ..core.whole import whole

MAX_SEED = 2**64
# Which of the two kinds of seeds a stream is for.
_SHARED, _OWN = "shared seeds", "own seeds"


class SeedGenerator:
    """Gives seeds: some that all workers share, some of this worker's own.

    The *n*-th seed is a function of what it was seeded with, of the worker and of *n*.

    Parameters
    ----------
    seed
        0 <= seed < 2**64.

    Examples
    --------
    >>> first, second = SeedGenerator(7).spawn(0), SeedGenerator(7).spawn(1)
    >>> first.generate_shared_seed() == second.generate_shared_seed()
    True
    >>> first.generate_seed() == second.generate_seed()
    False
    """

    def __init__(self, seed: int = 0) -> None:
        self._worker: tuple[int, ...] = ()
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Begin again with another seed."""
        self._seed = whole("seed", seed, least=0, below=MAX_SEED)
        self._counts = {_SHARED: 0, _OWN: 0}

    def generate_shared_seed(self) -> int:
        """Return the next seed that is the same in every worker."""
        return self._next(_SHARED, ())

    def generate_seed(self) -> int:
        """Return the next seed of this worker."""
        return self._next(_OWN, self._worker)

    def _next(self, kind: str, worker: tuple[int, ...]) -> int:
        count = self._counts[kind]
        self._counts[kind] += 1
        return Stream(self._seed, 0, (count, *worker), kind).integer()

    def spawn(self, worker_id: int, inplace: bool = False) -> SeedGenerator:
        """Return the generator of one worker; ``inplace`` makes this one it."""
        spawned = self if inplace else SeedGenerator(self._seed)
        spawned._worker = (*self._worker, whole("worker_id", worker_id, least=0))
        spawned._counts = {**self._counts, _OWN: 0}
        return spawned

    def __getstate__(self) -> dict[str, Any]:
        return dict(self.__dict__)
