"""Acts that may end, kill or fork their process: each in one of its own, forked off a ready one.

The ready one has imported everything and runs nothing, so a process of it takes milliseconds. It
says how each ended, what it printed, and which processes and temporary files it has left.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from voxpipe.reading_services.workers.script import remove_folders_of_the_dead

SECONDS = 100
"""For how long one may run, before its stacks are printed and it is ended."""
# What an orphan needs to notice, on a machine that is busy.
GRACE = 20.0
LONGEST = 6000
_SERVE = "import isolated; isolated.serve()"


@dataclass(frozen=True)
class Ended:
    """What became of one process."""

    status: int
    """Its exit status; less than 0 for a signal."""
    said: str
    """What it, and what it started, have printed."""
    left: list[str]
    """Processes and temporary files that it has left behind."""

    def refuse(self, status: int = 0, said: str = "") -> None:
        """Raise unless it ended with this status, said this, and left nothing."""
        found = (self.status, self.said.strip(), self.left)
        assert found == (status, said, []), f"{found[0]}, left {self.left}:\n{self.said}"


class Isolated:
    """Has ``act(seed)`` of modules of tests done, in one process after another."""

    def __init__(self) -> None:
        here = Path(__file__).parent
        path = os.pathsep.join([str(here), str(here.parent), *sys.path])
        self._ready = subprocess.Popen(
            [sys.executable, "-c", _SERVE],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __call__(self, module: str, act: str, seed: int) -> Ended:
        """Return how the process of one seed ended."""
        ready = self._ready
        assert ready.stdin is not None
        assert ready.stdout is not None
        ready.stdin.write(f"{module} {act} {seed}\n")
        ready.stdin.flush()
        # Without an answer it is gone; a reader of one line holds nothing back.
        heard, _, _ = select.select([ready.stdout], [], [], 2 * SECONDS + 2 * GRACE)
        line = ready.stdout.readline() if heard else ""
        assert line, f"no answer, {ready.poll()}"
        return Ended(**json.loads(line))

    def close(self) -> None:
        """End the ready one."""
        self._ready.communicate()


def serve() -> None:
    """Have acts done as they come in, until there are no more."""
    while line := sys.stdin.readline():
        module, act, seed = line.split()
        do: Callable[[int], None] = getattr(importlib.import_module(module), act)
        place = Path(tempfile.mkdtemp(prefix="voxpipe-fault-"))
        (place / "tmp").mkdir()
        with open(place / "said", "w+b") as said:
            pid = os.fork()
            if not pid:
                # Out of here by returning or raising, as any script: this is the last frame.
                _prepare(place, said.fileno())
                break
            status = _waited(pid)
            left = _left(pid, place / "tmp")
            said.seek(0)
            text = said.read().decode(errors="replace")[-LONGEST:]
        shutil.rmtree(place, ignore_errors=True)
        sys.stdout.write(f"{json.dumps({'status': status, 'said': text, 'left': left})}\n")
        sys.stdout.flush()
    else:
        return
    do(int(seed))


def _prepare(place: Path, said: int) -> None:
    """Make this process one of its own: session, folder of temporary files, output."""
    os.setsid()
    with open(os.devnull) as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.environ["TMPDIR"] = str(place / "tmp")
    os.environ["VOXPIPE_CACHE"] = str(place / "cache")
    tempfile.tempdir = None
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.dump_traceback_later(SECONDS, exit=True)


def _waited(pid: int) -> int:
    end = time.monotonic() + SECONDS + GRACE
    pidfd = os.pidfd_open(pid)
    try:
        if not select.select([pidfd], [], [], end - time.monotonic())[0]:
            os.killpg(pid, signal.SIGKILL)
    finally:
        os.close(pidfd)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _left(session: int, folder: Path) -> list[str]:
    """Return what is still there of a session, after it has had the chance to go."""
    end = time.monotonic() + GRACE
    while left := [*_processes(session), *os.listdir(folder)]:
        if time.monotonic() > end:
            break
        select.select([], [], [], 0.02)
    if left == os.listdir(folder):  # of a fork server that was killed while it started
        for name in left:
            os.utime(folder / name, (0, 0))
        remove_folders_of_the_dead(str(folder))  # as the next loader does
        left = os.listdir(folder)
    for name in left:
        number, _, _ = name.partition(" ")
        if number.isdigit():
            os.kill(int(number), signal.SIGKILL)
    return left


def _processes(session: int) -> list[str]:
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                name, _, rest = (process / "stat").read_text().rpartition(")")
            except OSError:  # it is gone
                continue
            state, _, _, of_session = rest.split()[:4]
            if int(of_session) == session and state != "Z":
                found.append(f"{process.name} {name.partition('(')[2]}")
    return found
