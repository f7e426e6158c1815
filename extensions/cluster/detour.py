"""A detour for a worker whose node cannot connect to the trainer: Ray carries the bytes.

An actor on the trainer's node connects to the trainer in place of the worker, and the worker calls
the methods of that actor. Large parts travel through Ray's object store. Neither the protocol of
streams nor their key changes, and the trainer reads a stream as any other.
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

# Bytes of one call, and calls to send them that may be under way: so much of the store is in use.
_PART, _CALLS = 4 * 2**20, 4
# Seconds in which further bytes belong to the same call.
_PAUSE = 0.001
# Seconds after which a call without bytes returns, and for which one is waited for.
_POLL_SECONDS, _CALL_SECONDS = 2.0, 15.0
# Seconds for the start of the actor, and for bytes that the trainer does not read.
_START_SECONDS, _READ_SECONDS = 60.0, 600.0


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
        """End this process when the worker has not called for some seconds: its node is gone."""
        while self._is_called.wait(_CALL_SECONDS):
            self._is_called.clear()
        os._exit(0)


def detour(node: str, address: bytes) -> Connection:
    """Return a connection to the Unix socket of a trainer on another node.

    Raises
    ------
    RayError
        The node has no actor that connects to it.
    """
    make: Any = ray.remote  # its types lack the groups
    remote = make(num_cpus=0, concurrency_groups={"send": 1, "receive": 1})
    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    forwarder = remote(Forwarder).options(scheduling_strategy=strategy).remote(address)
    ray.get(forwarder.__ray_ready__.remote(), timeout=_START_SECONDS)
    ours, theirs = socket.socketpair()
    for pass_bytes in (_send, _receive):
        threading.Thread(target=pass_bytes, args=(forwarder, theirs), daemon=True).start()
    return Connection(ours.detach())


def _send(forwarder: Any, peer: socket.socket) -> None:
    """Pass the bytes of the worker on until it closes its end."""
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
    _end(peer)
    ray.kill(forwarder)


def _next_part(peer: socket.socket) -> NDArray[np.uint8]:
    """Return the next bytes, with those that follow at once: a call costs as much as a megabyte."""
    part = np.empty(_PART, np.uint8)
    size = peer.recv_into(part)  # type: ignore[arg-type]  # NumPy's stubs lack the protocol
    while 0 < size < _PART and select.select([peer], [], [], _PAUSE)[0]:
        if not (more := peer.recv_into(part[size:])):  # type: ignore[arg-type]
            break
        size += more
    return part[:size]


def _receive(forwarder: Any, peer: socket.socket) -> None:
    """Pass the bytes of the trainer on until it closes its end."""
    receive = forwarder.receive.options(concurrency_group="receive")
    with contextlib.suppress(RayError, OSError):
        while True:
            peer.sendall(ray.get(receive.remote(), timeout=_CALL_SECONDS))
    _end(peer)


def _end(peer: socket.socket) -> None:
    """Let the worker read the end of its stream."""
    with contextlib.suppress(OSError):
        peer.shutdown(socket.SHUT_RDWR)
