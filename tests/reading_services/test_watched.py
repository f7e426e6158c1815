"""A pass that a thread makes: closed once, and nothing is taken from under the thread."""

import multiprocessing
import sys
import threading

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.adapters import Limits
from voxpipe.core.errors import ItemTimeout
from voxpipe.reading_services import reading_service as running
from voxpipe.reading_services.timeout_iterator import TimeoutIterator
from voxpipe.reading_services.workers.worker import DEAF, _listen

LIMIT = 60  # seconds after which a wait is taken for a hang


def test_a_closed_pass_has_no_more():
    """It ends instead of waiting for a thread that is gone."""
    watched = TimeoutIterator(iter(range(3)), Limits())
    first = next(watched)

    watched.close()

    assert (first, list(watched), watched.running_threads()) == (0, [], [])


def test_volumes_stay_open_under_a_thread_that_reads(monkeypatch):
    """They are closed when it is done with its item."""
    closed, gate, inside = [], threading.Event(), threading.Event()
    monkeypatch.setattr(running, "close_volumes", lambda: closed.append(True))

    def wait(sample):
        inside.set()
        gate.wait(LIMIT)
        return sample

    pipe = vp.from_cases([{"image": np.zeros((1, 4, 4, 4))}]).open_volume().realize().map(wait)
    limits = vp.Timeout(0.2, start=0.2, stop=0.1)
    others = threading.enumerate()  # of tests whose functions never return
    with vp.DataLoader2(pipe, limits) as it, pytest.raises(ItemTimeout):
        list(it)
    before = list(closed)
    running_now = [t for t in threading.enumerate() if t not in others]
    waiting = [t for t in running_now if t.name == "voxpipe-free"]
    gate.set()
    for thread in waiting:
        thread.join(LIMIT)

    assert inside.is_set()
    assert (before, len(waiting), len(closed)) == ([], 1, 1)


class Full:
    def put(self, data):
        raise MemoryError("no room for a message")


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_worker_that_cannot_listen_ends(capfd):
    """So that another takes its place; it says why."""
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()
    process = fork.Process(target=_listen, args=(theirs, Full()), daemon=True)
    process.start()

    ours.send_bytes(b"a job")
    process.join(LIMIT)

    assert process.exitcode == DEAF
    assert "no room for a message" in capfd.readouterr().err
    process.close()
    ours.close()
    theirs.close()
