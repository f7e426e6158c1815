"""NumPy's global generator, kept and put back in a few microseconds.

``np.random.get_state`` and ``set_state`` copy 624 numbers one by one: 37 µs of processor time each,
three quarters of what a function of the user's costs a loader without workers. NumPy gives the
address of these numbers, so they are copied as one piece. What that piece does not hold is the
normal number that ``randn`` may have left over: whether there is one stands in the object around
it, at a place that is tried out on another one; where it is not found, NumPy is asked each time.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

# 624 words and the place in them, as struct mt19937_state has them; checked each time they are
# read the slow way.
_BYTES = 625 * 4
# A RandomState is a head of 16 bytes, a table, its bit generator, 5 pointers to what that does,
# and then struct aug_bitgen: a pointer, whether a normal number is left over, and that number.
_LEFT_OVER = 16 + 8 + 8 + 5 * 8 + 8
_NUMBER = _LEFT_OVER + 8


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
    same = last is not None and last.generator is generator and last.memory == memory
    # After the same seed one normal number leaves the same memory as two, and one left over.
    if last is not None and same and _is_known_to_be_plain():
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


def _is_known_to_be_plain() -> bool:
    """Whether no normal number is left over; False where nobody knows."""
    return _knows_the_place() and not _left_over(np.random.mtrand._rand)


@functools.cache
def _knows_the_place() -> bool:
    """Try out, on another generator, where it stands that a normal number is left over."""
    tried = np.random.RandomState(0)
    if type(tried).__basicsize__ < _NUMBER + 8:
        return False
    found = []
    for _ in range(4):
        found.append(_left_over(tried))
        whole: Any = tried.get_state()
        number = ctypes.c_double.from_address(id(tried) + _NUMBER).value
        if found[-1] and number != whole[4]:
            return False
        tried.standard_normal()
    return found == [0, 1, 0, 1]


def _left_over(state: Any) -> int:
    return ctypes.c_int.from_address(id(state) + _LEFT_OVER).value


def _generator() -> Any:
    return np.random.mtrand._rand._bit_generator


def _memory(generator: Any) -> bytes:
    if type(generator) is not np.random.MT19937:
        return b""
    return ctypes.string_at(_address(generator), _BYTES)


def _address(generator: Any) -> int:
    return int(generator.ctypes.state_address)
