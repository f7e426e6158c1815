"""The global generators of random, NumPy and torch, for functions of the user's."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Iterator

import numpy as np
import torch


def seed_globals(seed: int) -> None:
    """Seed the global generators; the graphics card's are left alone."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # NumPy's global generator takes 32 bits
    torch.default_generator.manual_seed(seed)


@contextlib.contextmanager
def seeded_globals(seed: int) -> Iterator[None]:
    """Seed the global generators inside the ``with`` block and put them back after it."""
    kept = random.getstate(), np.random.get_state(), torch.get_rng_state()
    seed_globals(seed)
    try:
        yield
    finally:
        random.setstate(kept[0])
        np.random.set_state(kept[1])
        torch.set_rng_state(kept[2])
