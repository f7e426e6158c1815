"""The native library: found beside the package, loaded once a kernel is asked for.

It has a plain C interface and knows nothing of Python, so one build serves every version of it.
A call packs one job of plain numbers and hands over addresses; ``ctypes`` releases the
interpreter's lock meanwhile. The library states the version of its interface.

``VOXPIPE_NATIVE=0`` switches it off; the name of a path asks for that one.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, TypeVar

from .settings import NATIVE, read_setting

T = TypeVar("T")
ABI = 7  # VOXPIPE_ABI of native/interface.h
PATHS = ("portable", "avx2", "avx512", "avx512_gather")
_GATHERS = "/sys/devices/system/cpu/vulnerabilities/gather_data_sampling"


def best_level(place: str = _GATHERS) -> int:
    """Return 0, the best path, or that without gathers where a mitigation makes them slow."""
    with suppress(OSError), open(place) as file:
        if "not affected" not in file.read().lower():
            return PATHS.index("avx512") + 1
    return 0


_LEVELS = {"": best_level(), "0": None}
_LEVELS |= {name: level for level, name in enumerate(PATHS, 1)}


def native_level() -> int | None:
    """Return the path that ``VOXPIPE_NATIVE`` asks for: 0 is the best, None no library.

    Raises
    ------
    BadSetting
        Where it is something else.
    """
    level: int | None = _LEVELS.get(os.environ.get(NATIVE, ""), -1)
    return level if level != -1 else read_setting(NATIVE, 0)


_FREE_SECONDS: ContextVar[list[float] | None] = ContextVar("free_seconds", default=None)


@contextmanager
def free_seconds() -> Iterator[list[float]]:
    """Collect the processor seconds of this thread's calls without the interpreter's lock."""
    seconds: list[float] = []
    token = _FREE_SECONDS.set(seconds)
    try:
        yield seconds
    finally:
        _FREE_SECONDS.reset(token)


def free_of_lock(function: Callable[..., T]) -> Callable[..., T]:
    """Return a function that releases the interpreter's lock, and is counted as one that does.

    Kernels of ours do, and what zlib, bz2, lzma, numcodecs and imagecodecs decode by: another
    thread went on during one long call of each, as none did during `bytes()`.
    """

    def call(*arguments: Any, **options: Any) -> T:
        seconds = _FREE_SECONDS.get()
        if seconds is None:
            return function(*arguments, **options)
        start = time.thread_time()
        try:
            return function(*arguments, **options)
        finally:
            seconds.append(time.thread_time() - start)

    return call


def native_library(jobs: Sequence[str], *, numbers: Sequence[str] = ()) -> tuple[Any, str]:
    """Return the loaded library and an empty string, or None and why there is none."""
    # ``jobs`` take the bytes of a job and return a status, ``numbers`` take nothing and return a
    # number.
    # The package's own name: the library lies beside the top of the package, wherever that is.
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
            for name in jobs:
                setattr(library, name, free_of_lock(getattr(library, name)))
            return library, ""
    except (OSError, AttributeError) as error:
        return None, f"it cannot be loaded ({error})"
    return None, "it was built from other sources"
