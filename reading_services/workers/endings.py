"""How a worker process ended, in words, and what to do about it."""

from __future__ import annotations

import signal

from .script import UNGUARDED
from .worker import DEAF, ORPHANED

_CRASHES = frozenset(
    -getattr(signal, name)
    for name in ("SIGSEGV", "SIGABRT", "SIGFPE", "SIGILL", "SIGBUS")
    if hasattr(signal, name)
)

_GUARD = 'Put the code that iterates under if __name__ == "__main__": workers import the script.'


def ending(exitcode: int | None) -> str:
    """Return how a process ended, as the rest of a sentence."""
    if exitcode is None:
        return "closed its channel"
    if exitcode < 0:
        return f"was killed by {signal.Signals(-exitcode).name}"
    if exitcode == UNGUARDED:
        return "imported the script, which began the loop again"
    if exitcode == ORPHANED:
        return "found its channel closed and ended"
    if exitcode == DEAF:
        return "could take no message and ended"
    return f"ended with exit status {exitcode}"


def advice(exitcode: int | None, was_up: bool) -> str:
    """Return what to do about it."""
    if exitcode == -signal.SIGKILL:
        return (
            "If nobody killed it, the system did, for lack of memory: try fewer workers or "
            "smaller batches."
        )
    if exitcode == -signal.SIGBUS:
        return "A file that it had mapped became shorter, or its disk failed."
    if exitcode == UNGUARDED:
        return _GUARD
    if not was_up:
        return f"{_GUARD} Its own message is above."
    if exitcode == DEAF:
        return "Its own message is above; for lack of memory, try fewer workers."
    if exitcode in _CRASHES:
        return (
            "Compiled code crashed: run with num_workers=0 and python -X faulthandler to see where."
        )
    return (
        "A function or library that it called ended the process by itself (os._exit): run "
        "with num_workers=0 to see where."
    )
