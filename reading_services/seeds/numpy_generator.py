"""NumPy's global generator, kept and put back in a few microseconds.

``np.random.get_state`` and ``set_state`` copy 624 numbers one by one: 37 µs of processor time each,
three quarters of what a function of the user's costs a loader without workers. NumPy gives the
address of these numbers, so they are copied as one piece. What that piece does not hold is the
normal number that ``randn`` may have left over: it is asked for unless nothing can have drawn.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

# 624 words and the place in them, as struct mt19937_state has them; checked each time they are
# read the slow way.
_BYTES = 625 * 4


@dataclass(frozen=True)
class NumpyState:
    """The state of the global generator."""

    generator: Any
    """Whose memory it is."""
    memory: bytes
    """The words and the place; empty where they are not where they are looked for."""
    whole: Any
    """What ``np.random.get_state`` returned."""

    @property
    def is_plain(self) -> bool:
        """Whether the memory is all of it: no normal number is left over."""
        return bool(self.memory) and not self.whole[3]


_put_back: NumpyState | None = None


def numpy_state() -> NumpyState:
    """Return the state of NumPy's global generator."""
    generator = _generator()
    memory = _memory(generator)
    last = _put_back
    if last is not None and last.generator is generator and last.memory == memory:
        # Whoever leaves a normal number over has drawn, and it would not be the same memory.
        return last
    whole: Any = np.random.get_state()
    if memory and memory != whole[1].tobytes() + np.int32(whole[2]).tobytes():
        memory = b""
    return NumpyState(generator, memory, whole)


def put_back(state: NumpyState) -> None:
    """Give NumPy's global generator a state back."""
    global _put_back
    _put_back = None
    if not state.is_plain or _generator() is not state.generator:
        np.random.set_state(state.whole)
        return
    np.random.seed(0)  # forgets the normal number that is left over
    ctypes.memmove(_address(state.generator), state.memory, _BYTES)
    _put_back = state


def _generator() -> Any:
    return np.random.mtrand._rand._bit_generator


def _memory(generator: Any) -> bytes:
    if type(generator) is not np.random.MT19937:
        return b""
    return ctypes.string_at(_address(generator), _BYTES)


def _address(generator: Any) -> int:
    return int(generator.ctypes.state_address)
