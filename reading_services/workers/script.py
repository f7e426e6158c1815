"""The user's script in new workers, where it is needed, and the fork server."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import pickle
import signal
import socket
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing import forkserver, process, spawn
from typing import Any

from ...core.errors import NotPicklable
from ...core.locks import ForkSafeLock, at_fork

# multiprocessing imports the script that is running into every worker, and all that it imports,
# torch for one. A worker that is sent instructions gets the script's name instead, and imports it
# when an object that was defined there arrives.

WORKER_NAME = "voxpipe-worker"
"""What the names of processes begin with that are started without the script."""
UNGUARDED_EXIT = 114
"""Exit status of a worker whose script begins the loop again; it must be nobody else's."""
INTERRUPT = frozenset({signal.SIGINT})
"""Ctrl-C. It goes to all processes of a terminal; the consumer decides what it means."""
_KEYS = ("init_main_from_name", "init_main_from_path")
_LOCK = ForkSafeLock()


def script_of_this_process() -> dict[str, str]:
    """Return what a worker needs in order to import the script; empty if there is no file.

    A worker that comes here while it imports the script ends: its loop is not under a guard.
    """
    _end_if_unguarded()
    preparation: dict[str, Any] = spawn.get_preparation_data("")
    script = {key: preparation[key] for key in _KEYS if key in preparation}
    path = script.get("init_main_from_path")
    return script if path is None or os.path.isfile(path) else {}


@contextlib.contextmanager
def hide_script() -> Iterator[None]:
    """Leave the script out of what new workers of ours are told, inside the ``with`` block."""
    with _LOCK:
        whole = spawn.get_preparation_data

        def without_script(name: str) -> dict[str, Any]:
            preparation: dict[str, Any] = whole(name)
            mine = name.startswith(WORKER_NAME)
            return {key: value for key, value in preparation.items() if not (mine and key in _KEYS)}

        spawn.get_preparation_data = without_script
        try:
            yield
        finally:
            spawn.get_preparation_data = whole


def ignore_interrupts() -> None:
    """Ignore Ctrl-C, and let it in: programs that a worker starts inherit that it is blocked."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPT)


def begin_with_interrupts_blocked() -> None:
    """Block Ctrl-C here, where others are forked, until each knows whether it is a worker."""
    signal.pthread_sigmask(signal.SIG_BLOCK, INTERRUPT)
    prepare: Any = spawn.prepare

    def prepare_process(data: Mapping[str, Any]) -> None:
        if data.get("name", "").startswith(WORKER_NAME):
            ignore_interrupts()
        else:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, INTERRUPT)
        prepare(data)

    spawn.prepare = prepare_process


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
            msg = f"a worker cannot find {name!r} in {module}: {error}"
            do = "Define it at the top level of the module, where importing is enough."
            raise NotPicklable(msg, do=do) from error


def _end_if_unguarded() -> None:
    """End a worker that runs the user's loop instead of importing, without a word or a handler."""
    this = process.current_process()
    if getattr(this, "_inheriting", False) and this.name.startswith(WORKER_NAME):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(UNGUARDED_EXIT)


def _import(script: Mapping[str, str]) -> None:
    this: Any = process.current_process()
    this._inheriting = True  # refuses to start processes, as in any child that imports its script
    try:
        spawn.prepare(dict(script))
    finally:
        del this._inheriting


# The fork server: what it imports before it starts workers, so that these start in 0.1 s.
#
# Each process has one of its own. What ``multiprocessing`` knows of its processes is copied into a
# forked child, which then waits for children that are not its own, and ends them when it exits.

FREEZE = "voxpipe.reading_services.workers.preload"
"""Imported last: it freezes what was imported before."""
# multiprocessing's own list: the script, which only workers that are sent pipes need.
_DEFAULT = ["__main__"]
FOLDERS = "pymp-"  # what the names of folders begin with in which multiprocessing has its sockets
# The list as it was set from here last, and the part of it that was the user's.
_last: tuple[list[str], list[str]] = ([], [])
# Where sockets of multiprocessing lie, by what its processes know of themselves.
_FOLDER = "tempdir"
# That of a parent, which takes it away when it ends.
_folder_of_parent: str | None = None


def preload(context: Any, modules: Sequence[str]) -> None:
    """Let a fork server that is not running yet import ``modules``, after the user's own.

    multiprocessing can replace its list and not tell it, so it is looked up where it lies.
    """
    global _last
    settings = _settings()
    if settings.get(_FOLDER) is None:  # no server was started by this process yet
        remove_folders_of_the_dead(tempfile.gettempdir())
    if _folder_of_parent is not None and settings.get(_FOLDER) == _folder_of_parent:
        del settings[_FOLDER]
    now = list(getattr(forkserver._forkserver, "_preload_modules", _DEFAULT))
    mine, users = _last
    if now != mine:
        users = [] if now == _DEFAULT else now
    imports = [*dict.fromkeys([*users, *modules]), FREEZE]
    context.set_forkserver_preload(imports)
    _last = (imports, users)


def remove_folders_of_the_dead(place: str) -> None:
    """Take away the user's folders in which a fork server listened that was killed."""
    with contextlib.suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if entry.name.startswith(FOLDERS):
                with contextlib.suppress(OSError):
                    _remove_if_dead(entry.path)


def _remove_if_dead(folder: str) -> None:
    status = os.lstat(folder)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return
    sockets = [os.path.join(folder, name) for name in os.listdir(folder)]
    # An empty one may be about to be used.
    if sockets and all(map(_nobody_listens, sockets)):
        for address in sockets:
            os.unlink(address)
        os.rmdir(folder)


def _nobody_listens(address: str) -> bool:
    """Whether a path is that of a socket that no process has open; who has it notices nothing."""
    if not stat.S_ISSOCK(os.lstat(address).st_mode):
        return False
    # Of another type: where a server listens it is refused for that, before the server is asked.
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as other:
        return other.connect_ex(address) == errno.ECONNREFUSED


def _settings() -> dict[str, Any]:
    """Return what multiprocessing hands on to children; children that it forks have a copy."""
    config: dict[str, Any] = vars(process.current_process()).get("_config", {})
    return config


def _forget_parent() -> None:
    """Let a child of ``os.fork()`` start its own server, and leave its parent's workers alone."""
    global _folder_of_parent
    _folder_of_parent = _settings().get(_FOLDER)
    server: Any = forkserver._forkserver
    modules, alive = list(server._preload_modules), server._forkserver_alive_fd
    server.__init__()  # also its lock, which a thread of the parent may hold
    server._preload_modules = modules
    if alive is not None:
        with contextlib.suppress(OSError):  # whoever holds it keeps the server alive
            os.close(alive)
    children: set[Any] = vars(process).get("_children", set())
    for child in [child for child in children if child.name.startswith(WORKER_NAME)]:
        children.discard(child)


at_fork(after=_forget_parent)
