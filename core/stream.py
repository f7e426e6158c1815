"""Random numbers by position, not by history.

A stream belongs to one pipe and one item. Its numbers are a pure function of
(seed, epoch, identity of the item, name of the pipe): which worker draws them,
in which order, and what was drawn before, never enter.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Stream:
    """One pipe's random numbers for one item.

    Examples
    --------
    >>> a = Stream(7, 0, (3, 1), "rotate")
    >>> float(a.generator().uniform()) == float(a.generator().uniform())
    True
    >>> a.integer() == Stream(7, 1, (3, 1), "rotate").integer()
    False
    """

    seed: int
    """The user's integer, 0 <= seed < 2**64."""
    epoch: int
    """Which pass over the data, from 0."""
    identity: tuple[int, ...]
    """Which item: (case index, patch ordinal, ...)."""
    name: str
    """Which pipe, by name, so that fusing or wrapping changes no draw."""

    def _key(self) -> int:
        # Hashing spreads neighbouring seeds and identities over the whole key
        # space of Philox; the lengths keep (1, 23) and (12, 3) apart.
        text = struct.pack(
            f"<QqI{len(self.identity)}q",
            self.seed % 2**64,
            self.epoch,
            len(self.identity),
            *self.identity,
        )
        digest = hashlib.blake2b(text + self.name.encode(), digest_size=16).digest()
        return int.from_bytes(digest, "little")

    def generator(self) -> np.random.Generator:
        """Return a fresh counter-based generator (Philox 4x64) at its beginning.

        Reference: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
        """
        return np.random.Generator(np.random.Philox(key=self._key()))

    def integer(self) -> int:
        """Return one integer in [0, 2**63), e.g. to seed a foreign generator."""
        return self._key() % 2**63
