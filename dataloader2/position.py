"""Where in its run a loader is: seed, epoch, and the batches that were delivered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from ..graph import Pipe, Traits, traits_of, walk
from ..reading_services import Epoch
from ..reading_services.place import Place


@dataclass(frozen=True)
class Position:
    """Where in a run a loader is."""

    epoch: int = 0
    place: Place = field(default_factory=Place)
    """Which batches of it were delivered, also before a resume."""
    failed: int = 0
    """Items of it that failed, also before a resume; ``OnError`` has a budget for them."""


@dataclass
class Progress:
    """How far one epoch has come; outlives its iterator."""

    position: Position
    is_live: bool = False  # whether an iterator was made for it
    begun: bool = False  # whether a batch was asked for
    batches: Epoch | None = None
    """What runs. Whoever takes over ends it, also while its iterator is being collected."""

    def close(self) -> None:
        """End what runs; any number of times."""
        batches, self.batches = self.batches, None
        if batches is not None:
            batches.close()

    def following(self) -> Position:
        """Return where the next epoch begins; one that was never begun has used up nothing."""
        return Position(self.position.epoch + 1) if self.begun else self.position


@dataclass(frozen=True)
class TorchSeed:
    """A seed that torch's global generator drew, and where that generator was."""

    seed: int
    _before: torch.Tensor
    _seeded_with: int

    @classmethod
    def draw(cls) -> TorchSeed:
        """Draw one."""
        before, seeded_with = torch.get_rng_state(), torch.initial_seed()
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        return cls(seed, before, seeded_with)

    def is_outdated(self) -> bool:
        """Whether the generator was seeded since, so that another run is meant to begin."""
        # It was if its seed is another one, if it is where it was before this number was drawn, or
        # if it is where a seed has just put it. One that was given its old seed again and then used
        # otherwise than the first time looks like one that was only used.
        now, seeded_with = torch.get_rng_state(), torch.initial_seed()
        if seeded_with != self._seeded_with or torch.equal(now, self._before):
            return True
        return torch.equal(now, torch.Generator().manual_seed(seeded_with).get_state())


@dataclass(frozen=True)
class EpochSetter:
    """The sampler of a loader, for frameworks: passes ``set_epoch`` on unless it is there already.

    Lightning and others call it before every epoch, also before the one in whose middle a state
    was loaded: that place must not be lost.
    """

    _is_before: Callable[[int], bool]
    _set_epoch: Callable[[int], None]
    _sink: Pipe

    def set_epoch(self, epoch: int) -> None:
        """Make the next iteration that of ``epoch``; one that was begun and not used is meant, too.

        Lightning asks for the iterator of the first epoch before it says which that is.
        """
        if not self._is_before(epoch):
            self._set_epoch(epoch)

    @property
    def batch_size(self) -> int:
        """Items that the chain gathers in a batch; 1 where it gathers none."""
        return max(1, self._last_gathering.group)

    @property
    def drop_last(self) -> bool:
        """Whether a last, smaller batch is left out."""
        return self._last_gathering.drop_last

    @property
    def _last_gathering(self) -> Traits:
        return ([Traits(), *(t for t in map(traits_of, walk(self._sink)) if t.group)])[-1]
