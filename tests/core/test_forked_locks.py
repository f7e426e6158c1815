"""A child that is forked while a thread is in the middle of something waits for nobody.

Each is a script of its own: a process with the threads of a test run should not be forked.
"""

import subprocess
import sys

from checkout import modules

SCRIPT = """
import os, threading
from voxpipe.core import TALLY
from voxpipe.core.ledger import LEDGER, Entry
from voxpipe.core.remembered import cached_property
from voxpipe.core.tally import _LOCK
from voxpipe.core.turns import ForkSafeLock

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
    with lock, _LOCK, LEDGER._lock:
        one = Two(True)
        assert one.made is one.made

thread = threading.Thread(target=hold)
thread.start()
inside.wait()
child = os.fork()
if not child:
    Two(False).made
    TALLY.count(reads=1)
    LEDGER.add(("", ""), Entry())
    with lock:
        os._exit(7)
forked.set()
thread.join()
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
"""


def test_a_forked_child_waits_for_no_lock_of_a_thread():
    """Locks, and values that are worked out once, are free in the child."""
    run = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=20)

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

    assert takers == ["voxpipe.core.remembered"]
