"""What the fork server imports before it starts workers, so that these start in 0.1 s."""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing import forkserver
from typing import Any

FREEZE = "voxpipe.reading_services.workers.preloaded"
"""Imported last: it freezes what was imported before."""
# multiprocessing's own list: the script, which only workers that are sent pipes need.
_DEFAULT = ["__main__"]
# The list as it was set from here last, and the part of it that was the user's.
_last: tuple[list[str], list[str]] = ([], [])


def preload(context: Any, modules: Sequence[str]) -> None:
    """Let a fork server that is not running yet import ``modules``, after the user's own.

    There is one list for the process and one server. multiprocessing can replace the list and
    not tell it, so it is looked up where it lies; where a later Python has it elsewhere, the
    user's list is replaced.
    """
    global _last
    now = list(getattr(forkserver._forkserver, "_preload_modules", _DEFAULT))
    mine, users = _last
    if now != mine:
        users = [] if now == _DEFAULT else now
    wanted = [*dict.fromkeys([*users, *modules]), FREEZE]
    context.set_forkserver_preload(wanted)
    _last = (wanted, users)
