"""The global generators of random, NumPy and torch, for functions of the user's.

They are seeded for each item and restored after it.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator

import numpy as np
import torch

_OWN: set[int] = set()


def own_generators() -> None:
    """Say that nobody else draws here: to keep and put back costs an item 100 us."""
    _OWN.add(os.getpid())


def seed_globals(seed: int) -> None:
    """Seed the global generators; the graphics card's are left alone."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # NumPy's global generator takes 32 bits
    torch.default_generator.manual_seed(seed)


@contextlib.contextmanager
def seeded_globals(seed: int) -> Iterator[None]:
    """Seed the global generators inside the ``with`` block and put them back after it."""
    if os.getpid() in _OWN:
        seed_globals(seed)
        yield
        return
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    seed_globals(seed)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
