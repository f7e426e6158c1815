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
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from .settings import NATIVE, read_setting

ABI = 6  # VOXPIPE_ABI of native/interface.h
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


_KERNELS: list[tuple[Any, str]] = []  # the functions that do work: library and name


@contextmanager
def seconds_of_calls() -> Iterator[list[float]]:
    """Collect the processor seconds of each kernel that this thread calls inside the block."""
    seconds: list[float] = []
    plain, thread = [(*kernel, getattr(*kernel)) for kernel in _KERNELS], threading.get_ident()

    def with_clock(job: bytes, function: Callable[[bytes], int]) -> int:
        start = time.thread_time()
        status = function(job)
        if threading.get_ident() == thread:
            seconds.append(time.thread_time() - start)
        return status

    for library, name, function in plain:
        setattr(library, name, partial(with_clock, function=function))
    try:
        yield seconds
    finally:
        for kernel in plain:
            setattr(*kernel)


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
            _KERNELS.extend((library, name) for name in jobs)
            return library, ""
    except (OSError, AttributeError) as error:
        return None, f"it cannot be loaded ({error})"
    return None, "it was built from other sources"
