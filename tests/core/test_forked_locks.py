"""A child that is forked while a thread is in the middle of something waits for nobody.

Each is a script of its own: a process with the threads of a test run should not be forked.
"""

import importlib
import os
import subprocess
import sys
import threading
from dis import opname

import pytest
from checkout import modules

from voxpipe.core import locks as turns
from voxpipe.core.locks import DeferredActs, ForkSafeLock

SCRIPT = """
import os, threading
from voxpipe.core import IO_COUNTERS
from voxpipe.core.counters import PIPE_STATS, PipeCounts
from voxpipe.core.lru_cache import cached_property
from voxpipe.core.counters import _LOCK
from voxpipe.core.locks import ForkSafeLock

inside, forked = threading.Event(), threading.Event()
lock = ForkSafeLock()

class Two:
    def __init__(self, waits):
        self.waits = waits

    @cached_property
    def made(self):
        if self.waits:
            inside.set()
            forked.wait()
        return object()

def hold():
    with lock, _LOCK, PIPE_STATS._lock:
        one = Two(True)
        assert one.made is one.made

thread = threading.Thread(target=hold)
thread.start()
inside.wait()
child = os.fork()
if not child:
    Two(False).made
    IO_COUNTERS.count(reads=1)
    PIPE_STATS.add(("", ""), PipeCounts())
    with lock:
        os._exit(7)
forked.set()
thread.join()
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_waits_for_no_lock_of_a_thread():
    """Locks, and values that are worked out once, are free in the child."""
    # Since Python 3.12, a fork warns of other threads.
    command = [sys.executable, "-W", "ignore:This process:DeprecationWarning", "-c", SCRIPT]
    run = subprocess.run(command, capture_output=True, text=True, timeout=20)

    assert (run.returncode, run.stdout, run.stderr) == (0, "7\n", "")


def test_no_module_takes_the_cached_property_that_locks():
    """That of ``functools`` keeps a lock for all instances of a class, before Python 3.12."""
    text = "from functools import"
    takers = [
        name
        for name, file in modules().items()
        if any(
            "cached_property" in line and text in line
            for line in file.read_text(encoding="utf-8").split("\n")
        )
    ]

    assert takers == ["voxpipe.core.lru_cache"]


FORK_WHILE_A_THREAD_IMPORTS = """
import importlib, os, signal, sys, threading
from voxpipe.core import locks

class gate:
    entered, go = threading.Event(), threading.Event()

sys.modules["gate"] = gate

locks._pause = lambda seconds: gate.go.set()
thread = threading.Thread(target=importlib.import_module, args=("nibabel.slow",))
thread.start()
assert gate.entered.wait(30)
child = os.fork()
if not child:
    signal.alarm(10)
    import nibabel.slow
    os._exit(0 if nibabel.slow.DONE else 1)
gate.go.set()
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_fork_waits_for_an_import_of_another_thread(tmp_path):
    """Python's lock of the module would stay held in the child, by a thread that it lacks."""
    package = tmp_path / "nibabel"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "slow.py").write_text(
        "import gate\ngate.entered.set()\nassert gate.go.wait(30)\nDONE = True\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", FORK_WHILE_A_THREAD_IMPORTS],
        env={**os.environ, "PYTHONPATH": os.fspath(tmp_path)},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )

    assert (found.stdout, found.stderr) == ("0\n", "")


def test_a_fork_does_not_wait_for_its_own_import(monkeypatch):
    """Nor for modules of others, which may run a whole program while they are imported."""
    monkeypatch.setattr(turns, "_pause", pytest.fail)
    lock = importlib._bootstrap._get_module_lock("nibabel.made_up")
    lock.acquire()
    try:
        turns.await_imports()
    finally:
        lock.release()
    other = importlib._bootstrap._get_module_lock("somebodys.program")
    thread = threading.Thread(target=other.acquire)
    thread.start()
    thread.join()

    turns.await_imports()


# Python handles no signal at these. The handlers of Python 3.14 leave them out, too.
IDLE = ("NOP", "NOT_TAKEN")


def interrupt(act, count):
    """Raise KeyboardInterrupt before a bytecode of the locks' module; return whether it came."""
    left = [count]

    def trace(frame, event, argument):
        if frame.f_code.co_filename != turns.__file__:
            return None
        frame.f_trace_opcodes = True
        if event in ("call", "opcode") and opname[frame.f_code.co_code[frame.f_lasti]] not in IDLE:
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return left[0] <= 0


def is_free(lock):
    """Return whether another thread can enter a lock."""
    answers = []

    def look():
        if lock.acquire(timeout=0.0):
            lock.release()
            answers.append(True)

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return answers == [True]


def test_an_interrupt_at_any_bytecode_leaves_the_lock_free():
    """Neither the end of a ``with`` block nor a deferred act keeps it, and acts run later."""
    tried = 0
    for within in (False, True):
        for count in range(1, 10_000):
            lock, done = ForkSafeLock(), []
            acts = DeferredActs(lock)

            def act(lock=lock, acts=acts, done=done, within=within):
                if within:  # the end of the block runs it
                    with acts, lock:
                        acts.defer(lambda: done.append(1))
                else:
                    acts.defer(lambda: done.append(1))

            if not interrupt(act, count):
                assert done == [1]
                break
            tried += 1
            assert is_free(lock)
            with acts, lock:
                pass
            assert not acts.due

    assert tried > 40


def test_locks_are_left_in_c():
    """A method in Python would be interrupted before its first line."""
    for name in ("__enter__", "__exit__", "acquire", "release"):
        assert not hasattr(getattr(ForkSafeLock, name), "__code__")
