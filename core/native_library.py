"""The native library, next to the package: loaded when a kernel is first needed.

It has a plain C interface without Python, so one build serves every Python version. A call packs
one job of numbers and addresses; ``ctypes`` releases the interpreter lock meanwhile. The library
reports the version of its interface.

``VOXPIPE_NATIVE=0`` disables it; the name of a path selects that path.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cache
from typing import Any, TypeVar

from .context import ContextKey, holding, values_here
from .settings import NATIVE, read_setting

T = TypeVar("T")
ABI = 7  # VOXPIPE_ABI of native/interface.h
PATHS = ("portable", "avx2", "avx512", "avx512_gather")
_GATHERS = "/sys/devices/system/cpu/vulnerabilities/gather_data_sampling"


def best_level(place: str = _GATHERS) -> int:
    """Return 0 (the best path), or AVX-512 without gathers if a mitigation slows gathers down."""
    with suppress(OSError), open(place) as file:
        if "not affected" not in file.read().lower():
            return PATHS.index("avx512") + 1
    return 0


def native_level() -> int | None:
    """Return the path that ``VOXPIPE_NATIVE`` selects: 0 is the best, None no library.

    Raises
    ------
    BadSetting
        If the value is invalid.
    """
    return level_of(os.environ.get(NATIVE, ""))


@cache
def level_of(text: str) -> int | None:
    """Return the path that a text of ``VOXPIPE_NATIVE`` selects, as :func:`native_level` does."""
    levels = {"": best_level(), "0": None} | {name: n for n, name in enumerate(PATHS, 1)}
    return levels[text] if text in levels else read_setting(NATIVE, 0, {NATIVE: text})


_FREE_SECONDS: ContextKey[Any] = ContextKey(None)
_PLAIN_CALLS: list[tuple[Any, str]] = []  # functions of loaded libraries, until a measurement


def free_seconds() -> AbstractContextManager[list[float]]:
    """Collect the processor seconds of this thread's calls without the interpreter lock."""
    _count_calls()
    return holding(_FREE_SECONDS, [])


def _count_calls() -> None:
    """Let loaded libraries count the time of their calls, from now on."""
    while _PLAIN_CALLS:
        library, name = _PLAIN_CALLS.pop()
        setattr(library, name, free_of_lock(getattr(library, name)))


def free_of_lock(function: Callable[..., T]) -> Callable[..., T]:
    """Return a wrapper that counts the time of a function that releases the interpreter lock.

    Our kernels release it, and so do the decoders of zlib, bz2, lzma, numcodecs and imagecodecs.
    Measured: another thread ran during one long call of each, but not during ``bytes()``.
    """

    def call(*arguments: Any, **options: Any) -> T:
        seconds = values_here().get(_FREE_SECONDS)
        if seconds is None:
            return function(*arguments, **options)
        start = time.thread_time()
        try:
            return function(*arguments, **options)
        finally:
            seconds.append(time.thread_time() - start)

    return call


def native_library(jobs: Sequence[str], *, numbers: Sequence[str] = ()) -> tuple[Any, str]:
    """Return the loaded library and an empty string, or None and the reason.

    Functions of ``jobs`` take the bytes of a job and return a status; functions of ``numbers``
    take nothing and return a number.
    """
    # The library is a submodule of the top package, whose name may differ.
    spec = importlib.util.find_spec(f"{__name__.partition('.')[0]}._native")
    if spec is None or not spec.origin:
        return None, "it was not built"
    try:
        library = ctypes.CDLL(spec.origin)
        for name in jobs:
            getattr(library, name).argtypes = [ctypes.c_char_p]
        for name in (*jobs, "voxpipe_abi", *numbers):
            getattr(library, name).restype = ctypes.c_int64
        if library.voxpipe_abi() == ABI:
            _PLAIN_CALLS.extend((library, name) for name in jobs)
            if _FREE_SECONDS.get() is not None:
                _count_calls()
            return library, ""
    except (OSError, AttributeError) as error:
        return None, f"it cannot be loaded ({error})"
    return None, "it was built from other sources"
