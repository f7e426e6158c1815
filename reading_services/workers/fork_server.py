"""The fork server: what it imports before it starts workers, so that these start in 0.1 s.

Each process has one of its own. What ``multiprocessing`` knows of its processes is copied into a
forked child, which then waits for children that are not its own, and ends them when it exits.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import tempfile
from collections.abc import Sequence
from multiprocessing import forkserver, process
from typing import Any

from .script import WORKER_NAME

FREEZE = "voxpipe.reading_services.workers.preload"
"""Imported last: it freezes what was imported before."""
# multiprocessing's own list: the script, which only workers that are sent pipes need.
_DEFAULT = ["__main__"]
FOLDERS = "pymp-"
"""What the names of folders begin with in which multiprocessing has its sockets."""
# The list as it was set from here last, and the part of it that was the user's.
_last: tuple[list[str], list[str]] = ([], [])
# Where sockets of multiprocessing lie, by what its processes know of themselves.
_FOLDER = "tempdir"
# That of a parent, which takes it away when it ends.
_folder_of_parent: str | None = None


def preload(context: Any, modules: Sequence[str]) -> None:
    """Let a fork server that is not running yet import ``modules``, after the user's own.

    There is one list for the process and one server. multiprocessing can replace the list and
    not tell it, so it is looked up where it lies; where a later Python has it elsewhere, the
    user's list is replaced.
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
    wanted = [*dict.fromkeys([*users, *modules]), FREEZE]
    context.set_forkserver_preload(wanted)
    _last = (wanted, users)


def remove_folders_of_the_dead(place: str) -> None:
    """Take away folders of the user's in which a fork server listened, and nobody does.

    A killed process leaves one where its server was killed too, as by a scheduler of jobs.
    """
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
    found: dict[str, Any] = vars(process.current_process()).get("_config", {})
    return found


def _forget_parent() -> None:
    """Let a forked child start a server of its own, and leave its parent's workers alone.

    multiprocessing does so in the children that it forks itself, not in those of ``os.fork()``.
    """
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


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parent)
