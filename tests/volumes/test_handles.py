"""Open backends: few, shared, and never those of a parent process."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest

from voxpipe.volumes.backend import ViewBackend
from voxpipe.volumes.header import IDENTITY, array_header
from voxpipe.volumes.session import Handles


class Opener:
    """A source that counts how often it is opened."""

    def __init__(self, token, resident=0, current=True):
        self.token = token
        self.opened = 0
        self.resident = resident
        self.current = current

    def open(self):
        self.opened += 1
        array = np.zeros((1, 1, 1, 1))
        kind = type("Fake", (ViewBackend,), {"is_current": self.current})
        backend = kind(array, array_header(array, IDENTITY, "fake"), "fake")
        backend.resident_bytes = self.resident
        return backend


def test_equal_tokens_share_a_handle():
    """Another source object of the same token finds what the first one opened."""
    handles, one, two = Handles(), Opener("a"), Opener("a")

    assert handles.acquire(one) is handles.acquire(two)
    assert (one.opened, two.opened) == (1, 0)


def test_the_least_recently_used_goes():
    """No more than the bound are open; using one keeps it."""
    handles, sources = Handles(most=2), [Opener(name) for name in "abc"]
    a, b, c = sources

    for source in (a, b, a, c, a, b):
        handles.acquire(source)

    assert len(handles) == 2
    assert [source.opened for source in sources] == [1, 2, 1]


def test_what_takes_its_descriptor_later_counts_then():
    """Headers of many remote files are open at once; of those that got a local copy few are."""
    handles, sources = Handles(most=2), [Opener(name) for name in "abcde"]
    backends = [handles.acquire(source) for source in sources[:2]]
    Remote = type("Remote", (type(backends[0]),), {"holds_descriptor": False})  # noqa: N806
    for source in sources:
        source.open = partial(Remote, np.zeros((1, 1, 1, 1)), backends[0].header, source.token)
    handles.close()
    remote = [handles.acquire(source) for source in sources]
    assert len(handles) == 5

    for backend in remote:
        backend.__class__ = type(backends[0])  # one that holds a file
        handles.trim()

    assert [*handles.by_token] == ["d", "e"]


def test_closing_one_runs_what_other_threads_deferred():
    """A thread that closes all handles meanwhile does not wait, and none is left in the end."""
    handles, sources = Handles(), [Opener("a"), Opener("b")]

    def close_elsewhere(_):
        other = threading.Thread(target=handles.close)
        other.start()
        other.join(60)
        return ()

    for source in sources:
        backend = handles.acquire(source)
        backend.__class__ = type("Busy", (type(backend),), {"files": property(close_elsewhere)})

    handles.close_one("a", "")

    assert len(handles) == 0


def test_memory_that_reads_take_is_bounded_at_the_next_opening():
    """A compressed volume is decoded by its first read, after it was opened."""
    handles = Handles(most=10, most_bytes=100)
    for name in "abc":
        handles.acquire(Opener(name)).resident_bytes = 60

    handles.acquire(Opener("d"))

    assert sorted(handles.by_token) == ["c", "d"]


def test_memory_is_bounded_too():
    """Backends that hold voxels are bounded by bytes; one that alone is too large stays."""
    handles = Handles(most=10, most_bytes=100)
    small, large, huge = Opener("a", 60), Opener("b", 60), Opener("c", 200)

    for source in (small, large):
        handles.acquire(source)
    assert len(handles) == 1
    handles.acquire(huge)
    handles.acquire(huge)

    assert len(handles) == 1
    assert huge.opened == 1


def test_a_file_that_changed_is_opened_again():
    """Only a verified look notices; it opens anew only what is not current."""
    handles, same, changed = Handles(), Opener("a"), Opener("b", current=False)

    for source in (same, changed):
        handles.acquire(source)
        handles.acquire(source)
        handles.acquire(source, verify=True)

    assert (same.opened, changed.opened) == (1, 2)


def test_threads_open_one_handle():
    """Threads that ask at once wait for one opening and share it."""
    handles, source = Handles(), Opener("a")
    gate = threading.Barrier(8)

    def ask(_):
        gate.wait(timeout=30)
        return handles.acquire(source)

    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(ask, range(8)))

    assert len(found) == 1
    assert source.opened == 1


def test_a_source_may_open_others_to_tell_its_token():
    """A copy is called after the content of voxels that are opened for it."""
    handles, inner = Handles(), Opener("inner")

    class Named(Opener):
        @property
        def token(self):
            return f"copy of {handles.acquire(inner).header.shape}"

        @token.setter
        def token(self, _):
            pass

    outer, done = Named("outer"), threading.Event()

    def open_it():
        handles.acquire(outer)
        done.set()

    threading.Thread(target=open_it, daemon=True).start()

    assert done.wait(20)
    assert (inner.opened, outer.opened, len(handles)) == (1, 1, 2)


def test_a_source_that_fails_leaves_no_handles_behind():
    """Failing to open many sources does not fill the store."""
    handles = Handles(most=2)

    class Broken(Opener):
        def open(self):
            raise OSError(self.token)

    for n in range(10):
        with pytest.raises(OSError, match=str(n)):
            handles.acquire(Broken(str(n)))

    assert len(handles) <= 2


IN_A_CHILD = """
import os, threading
from voxpipe.volumes.session import Handles

class Opener:
    token, opened = "a", 0
    def open(self):
        self.opened += 1
        return type("Open", (), {"holds_descriptor": True, "remote": False, "resident_bytes": 0})()

handles, source = Handles(), Opener()
first = handles.acquire(source)
inside, forked = threading.Event(), threading.Event()

def hold():
    with handles._lock:
        inside.set()
        forked.wait()

thread = threading.Thread(target=hold)
thread.start()
inside.wait()
child = os.fork()
if not child:
    second = handles.acquire(source)
    os._exit(7 if second is not first and source.opened == 2 else 1)
forked.set()
thread.join()
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_forked_child_starts_empty():
    """Nothing of the parent is used, whatever lock a thread of it holds."""
    run = [sys.executable, "-c", IN_A_CHILD]
    done = subprocess.run(run, capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "7", done.stderr


def test_closing_drops_every_handle():
    """After closing, the next use opens again."""
    handles, source = Handles(), Opener("a")
    handles.acquire(source)

    handles.close()
    assert len(handles) == 0
    handles.acquire(source)

    assert source.opened == 2
