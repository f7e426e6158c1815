"""Streams between a trainer and its workers: no wait for a peer is without a limit."""

import os
import re
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from test_cluster_matrix import chain
from test_ray_service import contents
from test_shared_pool import actors_of_pools, wait_for

import voxpipe as vp
from voxpipe.core.errors import LikelyMistake, WorkerDied
from voxpipe.extensions.cluster import shared_actor, stream
from voxpipe.extensions.cluster.stream import StreamServer, connect, lift_limit

FACTS = {"number": 0}


@pytest.fixture
def short(monkeypatch):
    """Give peers a fifth of a second to prove that they have the key."""
    monkeypatch.setattr(stream, "GREETING_SECONDS", 0.2)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_trainer_that_does_not_answer_is_not_waited_for(kind):
    """The kernel accepts the connection, and nobody sends a challenge."""
    tcp, unix = socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX)
    with tcp, unix:
        unix.bind("\0voxpipe-test-of-streams")
        unix.listen()
        addresses = [tcp.getsockname()]
        if kind == "unix":
            addresses = [unix.getsockname(), closed_address()]
        with pytest.raises(OSError, match=r"cannot reach the trainer at 127.0.0.1, port \d+ \("):
            connect(addresses, b"key", FACTS)


def closed_address():
    """Return an address that refuses connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()


def test_the_error_of_a_blocked_port_has_node_address_and_port():
    """It names the reason, too, and what to open."""
    host, port = closed_address()
    text = f"node {socket.gethostname()} cannot reach the trainer at {host}, port {port} \\("
    cure = r".*refused\). Let nodes connect to all ports of 127.0.0.1, .* or give local_workers="
    with pytest.raises(OSError, match=text + cure):
        connect([(host, port)], b"key", FACTS)


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


RAY = [
    pytest.mark.slow,
    pytest.mark.usefixtures("cluster"),
    pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of Ray's own files
    pytest.mark.filterwarnings("ignore::voxpipe.core.errors.IdleWorkers"),  # on a busy machine
]


def of_ray(test):
    """Mark a test that starts Ray."""
    for mark in RAY:
        test = mark(test)
    return test


@of_ray
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


@of_ray
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


@of_ray
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


@pytest.mark.usefixtures("short")
def test_a_trainer_that_sends_no_payload_is_not_waited_for():
    """The limit holds until the worker has its payload."""
    done = threading.Event()
    server = StreamServer("127.0.0.1", lambda channel, facts: (done.wait(5), channel.close()))
    with ThreadPoolExecutor(1) as thread:
        near, is_near = connect([server.address], server.key, FACTS)
        with near:
            assert not is_near
            with pytest.raises(BlockingIOError):
                near.recv_bytes()
            lift_limit(near)
            waiting = thread.submit(near.poll, 0.5)
            assert not waiting.result()
            done.set()
    server.close()


def test_bytes_without_an_acknowledgement_end_a_stream():
    """After ten seconds for the trainer, and ten minutes for an actor."""
    limits = []

    def look(channel, facts):
        limits.append(limit_of(channel))
        channel.close()

    server = StreamServer("127.0.0.1", look)
    channel, _ = connect([server.address], server.key, FACTS)
    with channel:
        limits.append(limit_of(channel))
        assert channel.poll(5)
    server.close()
    assert sorted(limits) == [10_000, 600_000]


def limit_of(channel):
    """Return the milliseconds after which the kernel gives up."""
    with socket.socket(fileno=channel.fileno()) as peer:
        limit = peer.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        peer.detach()
    return limit


def test_a_turn_without_an_end_ends_the_process(monkeypatch):
    """Other ranks get another actor then, and turns that end in time do not count."""
    codes = []
    monkeypatch.setattr(shared_actor, "_leave", lambda code: (codes.append(code), 1 / 0))
    turns, entered, end = shared_actor._Turns(0.1), threading.Event(), threading.Event()

    def hold():
        with turns:
            entered.set()
            end.wait(5)

    def follow():
        with turns:
            pass

    with ThreadPoolExecutor(1) as threads:
        first = threads.submit(hold)
        assert entered.wait(5)
        with pytest.raises(ZeroDivisionError):
            follow()
        end.set()
        first.result()
    assert codes == [shared_actor.STUCK_EXIT]
