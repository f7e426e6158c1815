"""The user's script in a worker: imported only where something of it is needed.

multiprocessing imports the script that is running into every worker, in case what is sent
refers to it. With it comes all that the script imports, torch for one, and a script that
starts its work without ``if __name__ == "__main__":`` would start it again. A worker that
is sent instructions gets the name of the script instead, and imports it when an object that
was defined there arrives.
"""

from __future__ import annotations

import contextlib
import io
import os
import pickle
import signal
import sys
from collections.abc import Iterator, Mapping
from multiprocessing import process, spawn
from typing import Any

from ...core.errors import NotPicklable
from ...core.locks import ForkSafeLock

WORKER_NAME = "voxpipe-worker"
"""What the names of processes begin with that are started without the script."""
UNGUARDED = 114
"""Exit status of a worker whose script begins the loop again; it must be nobody else's."""
INTERRUPT = frozenset({signal.SIGINT})
"""Ctrl-C. It goes to all processes of a terminal; the consumer decides what it means."""
_KEYS = ("init_main_from_name", "init_main_from_path")
_LOCK = ForkSafeLock()


def script_of_this_process() -> dict[str, str]:
    """Return what a worker needs in order to import the script; empty if there is none.

    A script that is piped into Python calls itself ``<stdin>``, which is no file. A worker that
    comes here while it imports the script ends: its loop is not under a guard.
    """
    _end_if_unguarded()
    told: dict[str, Any] = spawn.get_preparation_data("")
    script = {key: told[key] for key in _KEYS if key in told}
    path = script.get("init_main_from_path")
    return script if path is None or os.path.isfile(path) else {}


@contextlib.contextmanager
def not_sent() -> Iterator[None]:
    """Leave the script out of what new workers are told, inside the ``with`` block.

    multiprocessing has no setting for that, so the function that collects it is wrapped;
    processes of other names, from other threads, are told as ever.
    """
    with _LOCK:
        whole = spawn.get_preparation_data

        def without_script(name: str) -> dict[str, Any]:
            told: dict[str, Any] = whole(name)
            mine = name.startswith(WORKER_NAME)
            return {key: value for key, value in told.items() if not (mine and key in _KEYS)}

        spawn.get_preparation_data = without_script
        try:
            yield
        finally:
            spawn.get_preparation_data = whole


def ignore_interrupts() -> None:
    """Ignore Ctrl-C from here on, and any that came while it was blocked.

    It is let in again: a program that a worker starts would inherit that it is blocked.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPT)


def begin_with_interrupts_blocked() -> None:
    """Block Ctrl-C in this process, which forks others, until each knows what it is.

    A process of its own gets the handlers that it had before; for a worker the first thing to do
    is to ignore Ctrl-C, and for one of the user's to let it in.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPT)
    prepare: Any = spawn.prepare

    def prepared(data: Mapping[str, Any]) -> None:
        if data.get("name", "").startswith(WORKER_NAME):
            ignore_interrupts()
        else:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPT)
        prepare(data)

    spawn.prepare = prepared


class ScriptUnpickler(pickle.Unpickler):
    """Reads pickles, and imports the script when one asks for something in it."""

    def __init__(self, data: bytes, script: Mapping[str, str]) -> None:
        super().__init__(io.BytesIO(data))
        self._script = dict(script)

    def find_class(self, module: str, name: str) -> Any:
        """Return what ``name`` is in ``module``."""
        if module == "__main__" and self._script:
            _import(self._script)
        try:
            return super().find_class(module, name)
        except AttributeError as error:
            raise NotPicklable(
                f"a worker cannot find {name!r} in {module}: {error}",
                do="Define it at the top level of the module, where importing is enough.",
            ) from error


def _end_if_unguarded() -> None:
    """End a worker that runs the user's loop instead of importing what it needs.

    Quietly: multiprocessing's own error would be printed once per worker, above what the
    consumer has to say. No handler of the script's may run, nor may it catch this.
    """
    this = process.current_process()
    if getattr(this, "_inheriting", False) and this.name.startswith(WORKER_NAME):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(UNGUARDED)


def _import(script: Mapping[str, str]) -> None:
    """Make the script this process's ``__main__``, once."""
    this: Any = process.current_process()
    this._inheriting = True  # refuses to start processes, as in any child that imports its script
    try:
        spawn.prepare(dict(script))
    finally:
        del this._inheriting
