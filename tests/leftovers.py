"""Resources that a test may leave: processes, threads, open files, epochs, blocked signals."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker
from pathlib import Path

# How long something that is on its way out may take to be gone, in seconds.
GRACE = 2.0
OPEN_FILES = Path("/proc/self/fd")
TASKS = Path("/proc/self/task")
# Of the children of one thread, in bytes: asked before and after every test, so in one read.
LONGEST_LIST = 2**16


def alive():
    """Return what is alive now, as pairs of kind and name."""
    threads = {("thread", f"{t.name} ({t.ident})") for t in threading.enumerate() if not t.daemon}
    return threads | open_files() | child_processes() | running_epochs() | blocked_signals()


def left_behind(before, grace=GRACE):
    """Return what has come since ``before``, after it has had the chance to go."""
    if not alive() - before:
        return set()
    release()
    if not alive() - before - services():
        return set()
    gc.collect()  # what only a cycle keeps; it looks at all there is, so nobody else asks for it
    deadline = time.monotonic() + grace
    while (left := alive() - before - services()) and time.monotonic() < deadline:
        multiprocessing.active_children()  # reaps those that have ended
        for thread in threading.enumerate():
            if not thread.daemon and thread is not threading.main_thread():
                thread.join(min(0.1, max(0.0, deadline - time.monotonic())))
        threading.Event().wait(0.01)
    if left:  # a thread that has ended since may have left a cycle
        gc.collect()
        left = alive() - before - services()
    return left


def open_files():
    """Return the open file descriptors, where the system lists them (Linux)."""
    if not OPEN_FILES.is_dir():
        return set()
    found = set()
    for number in os.listdir(OPEN_FILES):
        try:
            found.add(("file", f"{number} -> {os.readlink(f'{OPEN_FILES}/{number}')}"))
        except FileNotFoundError:
            continue  # the descriptor that listed the folder
    return found


def running_epochs():
    """Return the epochs that still run: volumes stay open until the last of them has ended."""
    # Looked up, not imported: tests of the lower layers should not bring in the higher ones.
    running = sys.modules.get("voxpipe.reading_services.reading_service")
    found = () if running is None else list(running._RUNNING)
    return {("epoch", f"{type(epoch).__name__} at {id(epoch):#x}") for epoch in found}


def blocked_signals():
    """Return the signals that this thread blocks: its forked children would survive SIGTERM."""
    if not hasattr(signal, "pthread_sigmask"):
        return set()
    return {("signal", f"{one!r}") for one in signal.pthread_sigmask(signal.SIG_BLOCK, [])}


def child_processes():
    """Return the children of this process, those that nobody has waited for included."""
    if not TASKS.is_dir():
        return {("process", str(p.pid)) for p in multiprocessing.active_children()}
    found = set()
    for task in os.listdir(TASKS):
        try:
            file = os.open(f"{TASKS}/{task}/children", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue  # a thread that ended meanwhile, or a kernel without this list
        try:
            pids = os.read(file, LONGEST_LIST)
        except ProcessLookupError:
            continue
        finally:
            os.close(file)
        found.update(("process", pid) for pid in pids.decode().split())
    return found


def release():
    """Drop what is kept on purpose between uses."""
    # Looked up, not imported: tests of the lower layers should not bring in the higher ones.
    close = getattr(sys.modules.get("voxpipe.volumes"), "close_volumes", None)
    if close is not None:
        close()


def services():
    """Return what Python, fsspec, zarr and matplotlib open once and keep for the process."""
    tracker, server = resource_tracker._resource_tracker, forkserver._forkserver
    pids = {str(pid) for pid in (tracker._pid, server._forkserver_pid)}
    numbers = {str(number) for number in (tracker._fd, server._forkserver_alive_fd)}
    for name in ("fsspec.asyn", "zarr.core.sync"):
        loop = getattr(sys.modules.get(name), "loop", [None])[0]
        if loop is not None:
            inside = (loop._selector, loop._ssock, loop._csock)
            numbers |= {str(part.fileno()) for part in inside}
    files = {
        (kind, name)
        for kind, name in open_files()
        if name.partition(" ")[0] in numbers or name.endswith(".ttf")  # matplotlib's fonts
    }
    return files | {("process", pid) for pid in pids}


def shared_names_left(before, grace=GRACE):
    """Return names in /dev/shm that have come since ``before`` and stay, such as semaphores.

    Those that another process maps are of other tests.
    """
    deadline = time.monotonic() + grace
    left = set(os.listdir("/dev/shm")) - before
    while left and time.monotonic() < deadline:
        threading.Event().wait(0.05)
        left &= set(os.listdir("/dev/shm"))
    return {name for name in left if not _is_of_others(Path("/dev/shm", name))}


def _is_of_others(file):
    """Whether another process maps a file; its map may have an earlier name of a semaphore."""
    for maps in Path("/proc").glob("[0-9]*/maps"):
        # A process may have ended, or be of another user.
        with suppress(OSError):
            inodes = {line.split()[4] for line in maps.read_text().splitlines()}
            if maps.parent.name != str(os.getpid()) and str(file.stat().st_ino) in inodes:
                return True
    return False
