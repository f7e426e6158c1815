"""A hang ends the run and is named."""

import os
import subprocess
import sys
from pathlib import Path

HANGS = """
import multiprocessing
import threading

def test_before():
    pass

def test_that_hangs():
    child = multiprocessing.get_context("fork").Process(target=threading.Event().wait)
    child.start()
    child.join()
"""
# As the suite's own does, but sooner.
CONFTEST = """
import pytest
from watchdog import Watchdog

DOG = Watchdog(0.5)

def pytest_sessionstart():
    DOG.start()

@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    DOG.at(item.nodeid)
    return (yield)
"""


def test_a_hang_ends_with_its_name_and_place(tmp_path):
    """Its last line is the test; before it come the calls of the main thread."""
    (tmp_path / "test_it.py").write_text(HANGS)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    here = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(
        command, cwd=tmp_path, env=here, capture_output=True, text=True, timeout=60
    )

    lines = done.stderr.splitlines()
    assert done.returncode == 1
    assert lines[-1] == "no end after 0.5 s: test_it.py::test_that_hangs"
    assert any("in test_that_hangs" in line for line in lines[-14:])
