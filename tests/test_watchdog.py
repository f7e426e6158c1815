"""A hang ends the run and is named."""

import subprocess
import sys
from pathlib import Path

HANGS = """
import threading, sys
from watchdog import Watchdog

def test_that_hangs():
    threading.Event().wait()

dog = Watchdog(0.2)
dog.start()
dog.at("test_before")
dog.at("test_that_hangs")
test_that_hangs()
"""


def test_a_hang_ends_with_its_name_and_place():
    """Its last line is the test; before it come the calls of the main thread."""
    command = [sys.executable, "-c", HANGS]
    here = Path(__file__).parent
    done = subprocess.run(command, cwd=here, capture_output=True, text=True, timeout=60)

    lines = done.stderr.splitlines()
    assert done.returncode == 1
    assert lines[-1] == "no end after 0.2 s: test_that_hangs"
    assert any("in test_that_hangs" in line for line in lines[-14:])
