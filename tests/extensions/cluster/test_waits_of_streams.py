"""Streams between a trainer and its workers: no wait for a peer is without a limit."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

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
