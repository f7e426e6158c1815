"""Named semaphores in a worker, which may be killed at any moment: none has a name.

A lock that is made in a spawned process, by numcodecs' blosc at its first chunk and by tqdm for
instance, has a name below ``/dev/shm``, by which the children of that process would find it. Python
takes the name away when it shuts down; a worker leaves by ``os._exit`` or is killed, and each of
each epoch would leave one there until the program ends, when the resource tracker warns of them
all. A worker has no children, so nobody needs the names.
"""

from __future__ import annotations

import contextlib
from multiprocessing import get_context, util
from typing import Any


def make_semaphores_nameless() -> None:
    """Take away the names of all semaphores of this process, of those too that it will make.

    They go on working. Nothing else that waits for the end of the process is run.
    """
    try:
        from multiprocessing import synchronize
    except ImportError:  # a system without semaphores
        return
    made: Any = synchronize.SemLock
    unlink = made._cleanup
    waiting: dict[Any, Any] = vars(util).get("_finalizer_registry", {})
    for last in list(waiting.values()):
        if getattr(last, "_callback", None) == unlink:
            with contextlib.suppress(Exception):  # somebody else took it away
                last()  # of no effect in a child that was forked from the maker
    with contextlib.suppress(ValueError):  # a system without forks
        made.__init__ = _nameless(made.__init__, get_context("fork"))


def _nameless(make: Any, forked: Any) -> Any:
    """Return the constructor of a semaphore, told that children are forked: these need no name."""

    def make_nameless(self: Any, *arguments: Any, **options: Any) -> None:
        make(self, *arguments, **{**options, "ctx": forked})

    return make_nameless
