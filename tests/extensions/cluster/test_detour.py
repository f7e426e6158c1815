"""A detour through Ray, where a worker cannot connect to the trainer."""

import os
import re
import signal
import socket

import numpy as np
import pytest
from test_cluster_matrix import chain
from test_ray_service import contents
from test_shared_pool import actors_of_pools, wait_for
from test_waits_of_streams import closed_address

import voxpipe as vp
from voxpipe.core.errors import LikelyMistake, WorkerDied
from voxpipe.extensions.cluster import detour
from voxpipe.extensions.cluster.stream import StreamServer


@pytest.fixture
def forwarder(monkeypatch):
    """Return a forwarder of this process, and the trainer's end of its connection."""
    monkeypatch.setattr(detour, "_POLL_SECONDS", 0.01)
    monkeypatch.setattr(detour.Forwarder, "_end_unused", lambda self: None)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("")  # a free abstract address
        server.listen()
        made = detour.Forwarder(server.getsockname())
        trainer, _ = server.accept()
        with trainer:
            yield made, trainer
        made._peer.close()


def test_parts_that_come_out_of_order_are_sent_in_order(forwarder):
    """Ray may begin a later call first."""
    made, trainer = forwarder
    for number in (2, 0, 1):
        made.send(number, np.full(3, number, np.uint8))
    assert trainer.recv(99) == bytes([0, 0, 0, 1, 1, 1, 2, 2, 2])


def test_a_call_returns_what_has_come(forwarder):
    """Nothing after a while without bytes; an error at the end."""
    made, trainer = forwarder
    assert made.receive() == b""
    trainer.send(b"job")
    assert made.receive() == b"job"
    trainer.close()
    with pytest.raises(EOFError):
        made.receive()


def test_a_forwarder_that_is_not_called_ends(monkeypatch):
    """Its worker's node is silent."""
    ends = []
    monkeypatch.setattr(detour, "_CALL_SECONDS", 0.01)
    monkeypatch.setattr(detour, "_leave", ends.append)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("")
        server.listen()
        made = detour.Forwarder(server.getsockname())
        assert wait_for(lambda: ends)
        made._peer.close()
    assert ends == [0]


@pytest.fixture
def blocked(monkeypatch):
    """Let no worker connect to the trainer, and return the text of the reason."""
    host, port = closed_address()
    start = StreamServer.__init__

    def start_blocked(self, *arguments):
        start(self, *arguments)
        self.address = host, port

    monkeypatch.setattr(StreamServer, "__init__", start_blocked)
    return rf"node \S+ cannot reach the trainer at {host}, port {port} \(.*refused\)\. Let nodes"


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
@pytest.mark.filterwarnings("ignore::voxpipe.core.errors.WorkerReplaced")
@pytest.mark.parametrize("pool", [None, "blocked"])
def test_ray_carries_the_batches_where_a_port_is_blocked(pool, blocked):
    """The same batches, after one warning; an actor that is killed is replaced."""
    with vp.DataLoader2(chain(), seed=7) as loader:
        expected = contents(loader)
    service = vp.RayReadingService(2, local_workers=0, pool=pool)
    with vp.DataLoader2(chain(), None, service, seed=7) as loader:
        with pytest.warns(LikelyMistake, match=blocked + ".*object store") as seen:
            found = contents(loader)
        assert sum(issubclass(one.category, LikelyMistake) for one in seen) == 1
        assert found == expected
        batches = iter(loader)
        next(batches)
        os.kill(loader.reading_service._pool.workers[-1].process.pid, signal.SIGKILL)
        assert len([*batches]) == len(expected) - 1


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_nothing_is_left_of_a_detour(blocked):
    """Neither of whole epochs nor of those that the loop leaves."""
    kinds = ("Actor", "Forwarder")
    service = vp.RayReadingService(2, local_workers=0)
    with vp.DataLoader2(chain(), None, service, seed=7) as loader:
        with pytest.warns(LikelyMistake, match=blocked):
            list(loader)
        for _ in range(3):
            for _ in zip(range(5), loader, strict=False):
                pass
        assert sorted(actors_of_pools(kinds)) == ["Actor", "Actor", "Forwarder", "Forwarder"]
    assert wait_for(lambda: not actors_of_pools(kinds))


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_the_loop_gets_the_error_of_a_blocked_port(blocked, monkeypatch):
    """One error with the actor, its node, the address, and the cure, if Ray carries no bytes."""
    start = StreamServer.__init__

    def start_without_socket(self, *arguments):
        start(self, *arguments)
        self.unix_address = b"\0nothing"

    monkeypatch.setattr(StreamServer, "__init__", start_without_socket)
    service = vp.RayReadingService(2, local_workers=0)
    with vp.DataLoader2(chain(), None, service, seed=7) as loader, pytest.raises(WorkerDied) as e:
        list(loader)
    text = str(e.value)
    assert re.search(rf"actor \d \(not up yet\) ended \(OSError: {blocked}", text)
    assert "Ray carries no bytes either" in text
