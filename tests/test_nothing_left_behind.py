"""The watch that every test is under sees what it should see."""

import multiprocessing
import os
import subprocess
import sys
import threading

import fsspec.asyn
import pytest
import zarr
from leftovers import alive, left_behind

NO_GRACE = 0.0
linux = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs Linux's /proc")


@linux
def test_an_open_file_is_seen(tmp_path):
    """A descriptor that stays open is one more than before."""
    before = alive()
    with open(tmp_path / "left.txt", "w", encoding="utf-8"):
        left = left_behind(before, NO_GRACE)

    assert [kind for kind, _ in left] == ["file"]
    assert left_behind(before, NO_GRACE) == set()


def test_a_thread_is_seen():
    """A thread that nobody joined would keep the interpreter alive."""
    before, end = alive(), threading.Event()
    thread = threading.Thread(target=end.wait, name="left")
    thread.start()
    left = left_behind(before, NO_GRACE)
    end.set()
    thread.join()

    assert [(kind, name.split()[0]) for kind, name in left] == [("thread", "left")]


@linux
def test_a_process_is_seen():
    """A child is found without asking multiprocessing, which did not start it."""
    before = alive()
    command = [sys.executable, "-c", "input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        left = left_behind(before, NO_GRACE)
        child.communicate(b"\n")

    assert ("process", str(child.pid)) in left


def test_services_of_the_process_are_forgiven():
    """The forkserver and the resource tracker live as long as the process does."""
    before = alive()
    worker = multiprocessing.get_context("forkserver").Process(target=os.getpid)
    worker.start()
    worker.join()
    worker.close()

    assert left_behind(before) == set()


def test_the_event_loop_of_fsspec_is_forgiven():
    """One loop in a daemon thread serves all remote files."""
    before = alive()

    fsspec.asyn.get_loop()

    assert left_behind(before) == set()


def test_the_event_loop_of_zarr_is_forgiven(tmp_path):
    """Version 3 of zarr keeps one too, for every store."""
    before = alive()

    array = zarr.open_array(str(tmp_path), mode="w", shape=(2, 2), chunks=(1, 1), dtype="u1")
    array[:] = 1

    assert array[:].sum() == 4
    assert left_behind(before) == set()
