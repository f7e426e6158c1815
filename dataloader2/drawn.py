"""The seed of a run that nobody gave: torch's global generator draws it, and rules it."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Drawn:
    """A number of torch's global generator, and where that generator was."""

    seed: int
    """The number."""
    _before: torch.Tensor
    _seeded_with: int

    @classmethod
    def now(cls) -> Drawn:
        """Draw one."""
        before, seeded_with = torch.get_rng_state(), torch.initial_seed()
        seed = int(torch.empty((), dtype=torch.int64).random_().item())
        return cls(seed, before, seeded_with)

    def is_outdated(self) -> bool:
        """Whether the generator was seeded since, so that another run is meant to begin.

        It was if its seed is another one, if it is where it was before this number was drawn, or if
        it is where a seed has just put it. One that was given its old seed again and then used
        otherwise than the first time looks like one that was only used.

        Examples
        --------
        >>> _ = torch.manual_seed(3)
        >>> drawn = Drawn.now()
        >>> drawn.is_outdated()
        False
        >>> _ = torch.manual_seed(3)
        >>> drawn.is_outdated()
        True
        """
        now, seeded_with = torch.get_rng_state(), torch.initial_seed()
        if seeded_with != self._seeded_with or torch.equal(now, self._before):
            return True
        return torch.equal(now, torch.Generator().manual_seed(seeded_with).get_state())
