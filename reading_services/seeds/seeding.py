"""The global generators of random, NumPy and torch, for functions of the user's."""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator

import numpy as np
import torch

from .numpy_generator import numpy_state, put_back

_OWN: set[int] = set()


def own_generators() -> None:
    """Say that nobody else draws in this process, so that nothing needs to be put back.

    Keeping and putting back takes 40 us, as much as a small item costs a worker otherwise.
    """
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
    kept = random.getstate(), numpy_state(), torch.get_rng_state()
    seed_globals(seed)
    try:
        yield
    finally:
        random.setstate(kept[0])
        put_back(kept[1])
        torch.set_rng_state(kept[2])
