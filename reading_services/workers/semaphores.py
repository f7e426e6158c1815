"""Named semaphores of a process that ends without Python's goodbye.

A lock that is made in a spawned process, by numcodecs' blosc at its first chunk and by tqdm for
instance, has a name below ``/dev/shm``, which the process takes away when Python shuts down. A
worker leaves by ``os._exit``, so it has to do that itself: else each worker of each epoch leaves
one there until the program ends, when the resource tracker warns of them all.
"""

from __future__ import annotations

import contextlib
import sys
from multiprocessing import util
from typing import Any


def unlink_semaphores() -> None:
    """Take away the names of all semaphores that this process has made; they go on working.

    Nothing else that waits for the end of the process is run: that might hang.
    """
    module = sys.modules.get("multiprocessing.synchronize")
    if module is None:
        return
    unlink = module.SemLock._cleanup
    waiting: dict[Any, Any] = vars(util).get("_finalizer_registry", {})
    for last in list(waiting.values()):
        if getattr(last, "_callback", None) == unlink:
            with contextlib.suppress(Exception):  # somebody else took it away
                last()  # of no effect in a child that was forked from the maker
