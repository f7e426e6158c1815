"""A detour for a worker whose node cannot connect to the trainer: Ray carries the bytes.

An actor on the trainer's node, the forwarder, connects to the trainer in place of the worker. The
worker calls the forwarder's methods, and Ray's object store carries large parts. The trainer reads
the stream as any other: messages, key and limits are the same.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
from collections import deque
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import ray
from numpy.typing import NDArray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

# Bytes of one call, and calls to send them that may be unfinished: they bound the used store.
_PART, _CALLS = 4 * 2**20, 4
# Seconds for which a call waits for further bytes of the worker.
_PAUSE = 0.001
# Seconds after which a call to receive returns without bytes, and after which it has failed. A
# function that holds Python's lock delays such a call.
_POLL_SECONDS, _CALL_SECONDS = 2.0, 60.0
# Seconds for the start of the forwarder, and for the trainer to read sent bytes.
_START_SECONDS, _READ_SECONDS = 60.0, 600.0
_leave = os._exit


class Forwarder:
    """Passes bytes between the trainer, on its node, and a worker that calls these methods."""

    def __init__(self, address: bytes) -> None:
        self._peer = socket.socket(socket.AF_UNIX)
        self._peer.settimeout(_READ_SECONDS)
        self._peer.connect(address)
        self._parts: dict[int, NDArray[np.uint8]] = {}
        self._next = 0
        self._is_called = threading.Event()
        threading.Thread(target=self._end_unused, daemon=True).start()

    def send(self, number: int, part: NDArray[np.uint8]) -> None:
        """Send a part to the trainer after those of lower numbers, which may come later."""
        self._parts[number] = part
        while self._next in self._parts:
            self._peer.sendall(self._parts.pop(self._next).data)
            self._next += 1

    def receive(self) -> bytes:
        """Return the next bytes from the trainer, or b"" after some seconds without any.

        Raises
        ------
        EOFError
            The trainer has closed the stream.
        """
        self._is_called.set()
        if not select.select([self._peer], [], [], _POLL_SECONDS)[0]:
            return b""
        if not (data := self._peer.recv(_PART)):
            raise EOFError
        return data

    def _end_unused(self) -> None:
        """End this process when the worker has not called for long, since its node is silent."""
        while self._is_called.wait(_CALL_SECONDS):
            self._is_called.clear()
        _leave(0)


def detour(node: str, address: bytes) -> Connection:
    """Return a connection to the Unix socket of a trainer on another node.

    Raises
    ------
    RayError
        No forwarder has started, or it cannot connect.
    """
    make: Any = ray.remote  # its types lack the groups
    remote = make(num_cpus=0, concurrency_groups={"send": 1, "receive": 1})
    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    forwarder = remote(Forwarder).options(scheduling_strategy=strategy).remote(address)
    ray.get(forwarder.__ray_ready__.remote(), timeout=_START_SECONDS)
    ours, theirs = socket.socketpair()
    threading.Thread(target=_pass_on, args=(forwarder, theirs), daemon=True).start()
    return Connection(ours.detach())


def _pass_on(forwarder: Any, peer: socket.socket) -> None:
    """Pass bytes in both directions until one side closes its end; then end the forwarder."""
    with peer:
        receiver = threading.Thread(target=_receive, args=(forwarder, peer), daemon=True)
        receiver.start()
        _send(forwarder, peer)
        ray.kill(forwarder)  # which ends the call that the receiver waits for
        receiver.join(_CALL_SECONDS)


def _send(forwarder: Any, peer: socket.socket) -> None:
    """Pass the bytes of the worker on until its end is closed."""
    calls: deque[Any] = deque()
    send = forwarder.send.options(concurrency_group="send")
    number = 0
    with contextlib.suppress(RayError, OSError):
        while (part := _next_part(peer)).size:
            calls.append(send.remote(number, part))
            number += 1
            if len(calls) > _CALLS:
                ray.get(calls.popleft(), timeout=_READ_SECONDS)
        ray.get([*calls], timeout=_CALL_SECONDS)


def _next_part(peer: socket.socket) -> NDArray[np.uint8]:
    """Return the next bytes of the worker, of which few calls should carry many.

    A call takes about 2.5 ms of both nodes, as much as a megabyte.
    """
    part = np.empty(_PART, np.uint8)
    size = peer.recv_into(part)  # type: ignore[arg-type]  # NumPy's stubs lack the protocol
    while 0 < size < _PART and select.select([peer], [], [], _PAUSE)[0]:
        if not (more := peer.recv_into(part[size:])):  # type: ignore[arg-type]
            break
        size += more
    return part[:size]


def _receive(forwarder: Any, peer: socket.socket) -> None:
    """Pass the bytes of the trainer on until it closes the stream, and close the worker's end."""
    receive = forwarder.receive.options(concurrency_group="receive")
    with contextlib.suppress(RayError, OSError):
        while True:
            peer.sendall(ray.get(receive.remote(), timeout=_CALL_SECONDS))
    with contextlib.suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)  # the worker, and the thread that sends, read the end
