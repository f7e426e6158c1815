"""Mix several pipes by weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from ....core import Stream
from ....core.origin import Origin
from ....graph import Pipe, Traits
from ...datapipe import length_of
from ...running import Drawing
from .longest import iterable_pipes

_ENDED = object()


class SampleMultiplexer(Drawing):
    """Yield items of several pipes, each time one of a pipe that is drawn by weight.

    Parameters
    ----------
    pipes_to_weights_dict
        Weight by pipe. When a pipe is exhausted the others go on, by their relative weights.
    seed
        Enters what is drawn. Outside a loader every pass is the same with it; in a loader each
        epoch differs in any case, and depends on the loader's seed too.

    Raises
    ------
    ValueError
        If there is no pipe, or a weight is not above 0.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> often, rarely = IterableWrapper([0] * 6), IterableWrapper([1] * 6)
    >>> mixed = SampleMultiplexer({often: 3, rarely: 1}, seed=0)
    >>> sorted(mixed), list(mixed) == list(mixed)
    ([0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1], True)
    """

    traits: ClassVar[Traits] = Traits()
    chained = "SampleMultiplexer"

    def __init__(
        self, pipes_to_weights_dict: Mapping[Pipe, float], seed: int | None = None
    ) -> None:
        super().__init__()
        if not pipes_to_weights_dict:
            raise ValueError("Empty dictionary passed to SampleMultiplexer: it mixes pipes")
        self.parents = iterable_pipes("SampleMultiplexer", tuple(pipes_to_weights_dict))
        self.weights = tuple(pipes_to_weights_dict.values())
        for weight in self.weights:
            if not weight > 0:
                msg = f"Expecting a positive and non-zero weight, got {weight}"
                raise ValueError(msg)
        self.seed = seed
        # The pipes were arguments: kept as such, they would travel along with every copy.
        self._arguments = ((self.weights,), {"seed": seed})
        call = f"SampleMultiplexer({len(self.parents)} pipes)"
        self.origin = Origin(call, self.origin.file, self.origin.line)

    def reset(self) -> None:
        """Seed the generator for a pass."""
        if self._seed is None and self.seed is not None:
            self._rng.seed(self.seed)
        else:
            super().reset()

    def seed_of_pass(self, seed: int) -> int:
        """Return the seed of a pass, mixed with the one that was given."""
        if self.seed is None:
            return seed
        return Stream(seed % 2**64, 0, (), f"SampleMultiplexer {self.seed}").integer()

    def __iter__(self) -> Iterator[Any]:
        """Yield the mixture."""
        running = [iter(pipe) for pipe in self.parents]
        weights = list(self.weights)
        while running:
            (chosen,) = self._rng.choices(range(len(running)), weights)
            item = next(running[chosen], _ENDED)
            if item is _ENDED:
                del running[chosen], weights[chosen]
            else:
                yield item

    def __len__(self) -> int:
        """Return the number of all items."""
        return sum(length_of(self, pipe) for pipe in self.parents)
