"""Random numbers by position, not by history.

A stream belongs to one pipe and one item. Its numbers are a pure function of
(seed, epoch, identity of the item, name of the pipe): which worker draws them,
in which order, and what was drawn before, never enter.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.random.bit_generator import ISeedSequence
from numpy.typing import NDArray


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

    def _key(self) -> bytes:
        # Hashing spreads neighbouring seeds and identities over the whole key
        # space of Philox; the lengths keep (1, 23) and (12, 3) apart.
        length = len(self.identity)
        numbers = _packing(length).pack(self.seed % 2**64, self.epoch, length, *self.identity)
        return hashlib.blake2b(numbers + self.name.encode(), digest_size=16).digest()

    def generator(self) -> np.random.Generator:
        """Return a fresh counter-based generator (Philox 4x64) at its beginning.

        Reference: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
        """
        return np.random.Generator(np.random.Philox(_Key(self._key())))

    def integer(self) -> int:
        """Return one integer in [0, 2**63), e.g. to seed a foreign generator."""
        return int.from_bytes(self._key(), "little") % 2**63


@cache
def _packing(length: int) -> struct.Struct:
    return struct.Struct(f"<QqI{length}q")


_LITTLE = np.dtype("<u8")


class _Key(ISeedSequence):
    """A key of Philox where NumPy expects what makes one.

    ``Philox(key=...)`` gives the same generator, but asks the operating system for a seed
    first, which it then does not use: 7 µs instead of 2.5.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def generate_state(self, n_words: int, dtype: Any = np.uint64) -> NDArray[Any]:
        """Return the key, two words of 64 bits."""
        if n_words != 2 or dtype is not np.uint64:
            msg = f"a key of Philox is two words of 64 bits, not {n_words} of {dtype}"
            raise ValueError(msg)
        return np.frombuffer(self._key, _LITTLE).astype(np.uint64, copy=False)
