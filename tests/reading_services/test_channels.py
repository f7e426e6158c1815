"""Limits on a channel: what a script sets for its own sockets does not reach it."""

import math
import os
import socket
import sys
from multiprocessing import Pipe

import numpy as np
import pytest

import voxpipe as vp
from voxpipe.reading_services.transport import shared_memory as channels
from voxpipe.reading_services.workers import worker_process as process

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="pipes of another kind")


@pytest.fixture
def default_timeout():
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(30)
    yield
    socket.setdefaulttimeout(before)


@pytest.fixture
def pair():
    ours, theirs = Pipe()
    with ours, theirs:
        yield ours, theirs


def test_limits_leave_the_channel_blocking(pair, default_timeout):
    """The default time limit of sockets is the script's, for its own sockets."""
    ours, theirs = pair
    channels.limit_waits(ours, 5)
    read, write = os.pipe()
    channels.send_descriptor(theirs, write)
    received = channels.receive_descriptor(ours)

    assert os.get_blocking(ours.fileno())
    assert os.get_blocking(theirs.fileno())
    for fd in (received, read, write):
        os.close(fd)


def test_a_limit_ends_a_wait(pair):
    """Reading what never comes stops with the error that means so."""
    ours, _ = pair
    channels.limit_waits(ours, 0.01)

    with pytest.raises(BlockingIOError):
        ours.recv_bytes()


@pytest.mark.parametrize("seconds", [math.inf, 1e12])
def test_no_limit_can_be_set(pair, seconds):
    """What no clock of the system can hold is no limit."""
    ours, theirs = pair
    channels.limit_waits(ours, seconds)
    theirs.send("word")

    assert ours.recv() == "word"


def large_batches(count=4):
    cases = [{"image": np.full((64, 64, 64), n, np.uint8)} for n in range(count)]
    return vp.from_cases(cases).open_volume().lazy_patch(64).batch_patches(2)


@pytest.mark.parametrize("start_method", ["forkserver", "fork"])
@pytest.mark.parametrize("slot_bytes", [None, 0])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_default_timeout_of_sockets_fails_no_epoch(default_timeout, start_method, slot_bytes):
    """Batches larger than a socket holds arrive, through slots and through the pipe."""
    service = vp.MultiProcessingReadingService(1, start_method, slot_bytes=slot_bytes)
    with vp.DataLoader2(large_batches(), None, service) as loader:
        assert len(list(loader)) == 2


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("seconds", [math.inf, 1e12])
def test_a_timeout_may_be_infinite(workers, seconds):
    """It means that there is none."""
    service = vp.MultiProcessingReadingService(workers)
    limits = vp.Timeout(item=seconds, start=seconds, stop=seconds)
    with vp.DataLoader2(large_batches(2), limits, service) as loader:
        assert len(list(loader)) == 1


def test_a_worker_that_starts_may_take_its_first_message_later(monkeypatch):
    """A message too large for the socket waits for the worker to start."""
    seconds = []

    def noted(channel, limit):
        seconds.append(limit)
        channels.limit_waits(channel, limit)

    monkeypatch.setattr(process, "limit_waits", noted)
    service = vp.MultiProcessingReadingService(1)
    with vp.DataLoader2(large_batches(2), vp.Timeout(item=77, start=100), service) as loader:
        assert len(list(loader)) == 1

    assert seconds[:2] == [177, 77]
