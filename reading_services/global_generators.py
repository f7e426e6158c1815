"""Seeding of the global generators of random, NumPy and torch, for functions of the user.

They are seeded for each item and restored after it.
"""

from __future__ import annotations

import contextlib
import os
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from ..core import Stream
from ..datapipes.epoch import restore_generator, set_seed_of, state_of_generator

_OWN: set[int] = set()


def own_generators() -> None:
    """Skip restoring in this process, where only items draw: it would take 100 us per item."""
    _OWN.add(os.getpid())


def seed_globals(seed: int, own: Sequence[Any] = ()) -> None:
    """Seed the global generators and ``own`` ones; the graphics card's are left alone."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # NumPy's global generator takes 32 bits
    torch.default_generator.manual_seed(seed)
    for number, generator in enumerate(own):
        # Two objects of one function must not draw the same numbers.
        set_seed_of(generator, Stream(seed, 0, (number,), "own generators").integer())


@contextlib.contextmanager
def seeded_globals(seed: int, own: Sequence[Any] = ()) -> Iterator[None]:
    """Seed the global generators and ``own`` ones inside the ``with`` block; restore them after."""
    if os.getpid() in _OWN:
        seed_globals(seed, own)
        yield
        return
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    states_of_own = [state_of_generator(generator) for generator in own]
    seed_globals(seed, own)
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
        for generator, state in zip(own, states_of_own, strict=True):
            restore_generator(generator, state)
