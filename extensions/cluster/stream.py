"""Streams between the trainer and workers of a cluster, and the relay of their batches into slots.

A worker connects to the trainer and proves that it has the key. On the trainer's node the stream is
a Unix socket, over which batches travel in shared slots, as those of worker processes do. From
another node they travel as plain bytes, which a thread of the trainer reads straight into slots.
"""

from __future__ import annotations

import contextlib
import json
import math
import mmap
import os
import pickle
import secrets
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from multiprocessing import AuthenticationError, connection
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...batching.collate import ArraySpec
from ...reading_services.transport.messages import STOP, BatchMessage
from ...reading_services.transport.shared_memory import limit_waits
from ...reading_services.transport.slot_reader import BatchBuffers
from ...reading_services.transport.slot_writer import arrays_in, size_of
from ...reading_services.workers.worker import Line, WorkerSettings, note_steps_in

# Seconds for a connection to prove that it has the key, and between two notes of a worker's step.
GREETING_SECONDS = 20.0
_NOTE_SECONDS = 0.25
# Seconds for which sent bytes may stay unacknowledged. A trainer that is stopped for long keeps its
# actors, though it reads no batches meanwhile.
_TRAINER_SECONDS, _ACTOR_SECONDS = 10, 600
_MOST_GREETING = 64 * 1024  # bytes
_FREE_BUFFERS = 2


class StreamedBatch(NamedTuple):
    """From a worker on another node: an answer; its parts follow as plain bytes."""

    answer: BatchMessage
    sizes: tuple[int, ...]


class StepNote(NamedTuple):
    """From a worker on another node: its current step and pass."""

    memory: bytes


class Direct(NamedTuple):
    """To the pool: a worker's own channel follows, as a descriptor."""


class Greeting(NamedTuple):
    """To the pool: the facts of a worker that has connected."""

    facts: dict[str, Any]


class StreamCarrier:
    """Memory of batches that leave by a stream: one buffer per batch, which is sent as it is."""

    def __init__(self) -> None:
        self._buffers = BatchBuffers(_FREE_BUFFERS, sys.maxsize)
        self._parts: list[NDArray[np.uint8]] = []
        self._outgoing: list[NDArray[np.uint8]] = []

    def take(self, specs: Sequence[ArraySpec]) -> list[NDArray[np.generic]]:
        """Return one C-ordered, uninitialised array per spec."""
        whole = self._buffers.take([((max(1, size_of(specs)),), np.dtype(np.uint8))])[0]
        part: NDArray[np.uint8] = whole.view(np.uint8)
        self._parts.append(part)
        return arrays_in(part, specs)

    def place(self, array: NDArray[Any]) -> tuple[int, int] | None:
        """Return (part, offset) of an array in a buffer of this batch; None for others."""
        for number, part in enumerate(self._parts if array.flags.c_contiguous else ()):
            offset = array.ctypes.data - part.ctypes.data
            if offset >= 0 and offset + array.nbytes <= part.nbytes and array.size:
                return number, offset
        return None

    def copy_in(self, array: NDArray[Any]) -> tuple[int, int]:
        """Return (part, offset) of an array from elsewhere, which is sent without a copy."""
        self._parts.append(np.ascontiguousarray(array).reshape(-1).view(np.uint8))
        return len(self._parts) - 1, 0

    def note_sent(self, numbers: Collection[int]) -> None:
        """Note the parts of the batch that is sent now; other parts are sent as empty ones."""
        parts, self._parts = self._parts, []
        self._outgoing = [part if n in numbers else part[:0] for n, part in enumerate(parts)]

    def release(self, numbers: Sequence[int], given_up: Sequence[int]) -> None:
        """Do nothing: the consumer uses no memory of this process."""

    def take_parts(self) -> list[NDArray[np.uint8]]:
        """Return the parts to send, and forget all parts."""
        parts, self._outgoing, self._parts = self._outgoing, [], []
        return parts


class StreamLine(Line):
    """The side of a worker on another node: batches leave as plain bytes after their message."""

    def carrier(self, settings: WorkerSettings) -> StreamCarrier:
        """Return buffers of this process."""
        return StreamCarrier()

    def share_notes(self) -> None:
        """Send the current step whenever it has changed."""
        self.memory = np.zeros(mmap.PAGESIZE, np.uint8)
        note_steps_in(self.memory)
        threading.Thread(target=self._send_notes, args=(self.memory,), daemon=True).start()

    def _send_notes(self, memory: NDArray[np.uint8]) -> None:
        last = b""
        pause = threading.Event()
        while not pause.wait(_NOTE_SECONDS):
            if (now := memory.tobytes()) != last:
                last = now
                try:
                    self.send(pickle.dumps(StepNote(now)))
                except OSError:  # the trainer is gone, and the listening thread ends this process
                    return

    def answer(self, message: bytes, carrier: Any) -> None:
        """Send the answer to a job, and then its parts."""
        parts = carrier.take_parts()
        answer = pickle.loads(message)
        with self._sending:
            if not isinstance(answer, BatchMessage) or not parts:
                self._channel.send_bytes(message)
                return
            sizes = tuple(part.nbytes for part in parts)
            self._channel.send_bytes(pickle.dumps(StreamedBatch(answer, sizes)))
            for part in parts:
                _write(self._channel.fileno(), part)


def _write(fd: int, part: NDArray[np.uint8]) -> None:
    view = memoryview(part)  # type: ignore[arg-type]  # NumPy's stubs lack the protocol
    while view:
        view = view[os.write(fd, view) :]


def _read(fd: int, part: NDArray[np.uint8]) -> None:
    view = memoryview(part)  # type: ignore[arg-type]  # NumPy's stubs lack the protocol
    while view:
        if not (count := os.readv(fd, [view])):
            raise EOFError
        view = view[count:]


class StreamArrival:
    """A batch of another node, whose parts were read into buffers of this process."""

    def __init__(self, parts: Sequence[NDArray[np.uint8]]) -> None:
        self._parts = parts

    @property
    def bytes(self) -> int:
        """Bytes of its parts."""
        return sum(part.nbytes for part in self._parts)

    def part(self, number: int, offset: int, size: int) -> NDArray[np.uint8]:
        """Return ``size`` bytes of a part, which stay valid as long as the array."""
        return self._parts[number][offset : offset + size]


@dataclass
class Relay:
    """Passes messages between a pool and a worker on another node, in a thread of the trainer.

    The pool gets a number for each batch, and finds the batch in ``batches``. So messages are
    small, and neither side waits for the other to read.
    """

    pool: Connection
    stream: Connection
    buffers: BatchBuffers
    batches: dict[int, tuple[bytes, Sequence[NDArray[np.uint8]]]]
    seconds: deque[float]
    """Processor time of receiving each batch."""

    def run(self) -> None:
        """Pass messages until one side is closed."""
        try:
            with contextlib.suppress(EOFError, OSError):
                while True:
                    for ready in connection.wait([self.pool, self.stream]):
                        self._to_worker() if ready is self.pool else self._to_pool()
        finally:
            shut(self.pool)
            self.stream.close()
            self.pool.close()

    def _to_worker(self) -> None:
        data = self.pool.recv_bytes()
        if data == STOP or pickle.loads(data).job:  # others only free slots, and it has none
            self.stream.send_bytes(data)

    def _to_pool(self) -> None:
        data = self.stream.recv_bytes()
        message = pickle.loads(data)
        if isinstance(message, StreamedBatch):
            self._take_batch(message)
        else:
            self.pool.send_bytes(data)

    def _take_batch(self, message: StreamedBatch) -> None:
        start = time.thread_time()
        specs = [((size,), np.dtype(np.uint8)) for size in message.sizes]
        parts: list[Any] = self.buffers.take(specs)
        for part in parts:
            _read(self.stream.fileno(), part)
        self.seconds.append(time.thread_time() - start)
        answer = message.answer
        self.batches[answer.index] = answer.data, parts
        self.pool.send(replace(answer, data=answer.index))


class StreamServer:
    """The trainer's listening sockets: TCP for other nodes, and a Unix socket for its own.

    ``greet`` is called in a thread of each connection that has the key, with the connection and
    the first message. It lifts the limit of waits when the connection is up.
    """

    def __init__(self, host: str, greet: Callable[[Connection, dict[str, Any]], None]) -> None:
        self._greet = greet
        self.key = secrets.token_bytes(32)
        tcp = socket.create_server((host, 0))
        unix = socket.socket(socket.AF_UNIX)
        # An abstract address leaves no file, even after a kill.
        unix.bind(f"\0voxpipe-{secrets.token_hex(16)}")
        unix.listen()
        self._sockets = [tcp, unix]
        for one in self._sockets:  # a peer may go between the wait and the accept
            one.setblocking(False)
        self.address: tuple[str, int] = tcp.getsockname()[:2]
        self.unix_address: bytes = unix.getsockname()
        self._woken, self._wake = socket.socketpair()
        self._pause = threading.Event()
        self._serving: list[threading.Thread] = []
        self._thread = threading.Thread(target=self._accept, name="voxpipe-streams", daemon=True)
        self._thread.start()

    def _accept(self) -> None:
        while True:
            ready = connection.wait([*self._sockets, self._woken])
            if self._woken in ready:
                return
            for server in ready:
                try:
                    peer, _ = server.accept()  # type: ignore[union-attr]
                except OSError:  # no descriptor is free, or the peer has gone
                    self._pause.wait(_NOTE_SECONDS)
                    continue
                peer.setblocking(True)
                _end_with_node(peer, _TRAINER_SECONDS)
                stream = Connection(peer.detach())
                thread = threading.Thread(target=self._serve, args=(stream,), daemon=True)
                self._serving = [*filter(threading.Thread.is_alive, self._serving), thread]
                thread.start()

    def _serve(self, stream: Connection) -> None:
        try:
            limit_waits(stream, GREETING_SECONDS)
            connection.deliver_challenge(stream, self.key)
            connection.answer_challenge(stream, self.key)
            facts = json.loads(stream.recv_bytes(_MOST_GREETING))
            self._greet(stream, facts)
        except (OSError, EOFError, ValueError, AuthenticationError):
            stream.close()  # not one of our workers, or it was stopped meanwhile

    def close(self) -> None:
        """Refuse further connections."""
        self._pause.set()
        with contextlib.suppress(OSError):
            self._wake.send(b"\0")  # a forked child may hold a copy, so closing would not do
        self._wake.close()
        self._thread.join(GREETING_SECONDS)
        for one in (*self._sockets, self._woken):
            one.close()

    def join(self) -> None:
        """Wait for the threads of streams, which have been shut."""
        for thread in self._serving:
            thread.join(_NOTE_SECONDS)


def connect(addresses: Sequence[Any], key: bytes, facts: dict[str, Any]) -> tuple[Connection, bool]:
    """Return the worker's end of a stream, and whether it leads to a process on this node.

    The last address has host and port. Waits have a limit until :func:`lift_limit`.

    Raises
    ------
    OSError
        No address can be reached.
    """
    reason: Exception | None = None
    for address in addresses:
        try:
            stream, is_near = Connection(_peer(address).detach()), isinstance(address, bytes)
            introduce(stream, key, {**facts, "is_near": is_near})
        except (OSError, EOFError, AuthenticationError) as error:
            reason = error
        else:
            return stream, is_near
    host, port = addresses[-1]
    raise OSError(
        f"node {socket.gethostname()} cannot reach the trainer at {host}, port {port} ({reason}). "
        f"Let nodes connect to all ports of {host}, as each pool has another one, or give "
        "local_workers=num_workers"
    ) from reason


def introduce(stream: Connection, key: bytes, facts: dict[str, Any]) -> None:
    """Prove to the trainer at the other end that this worker has the key, and send its facts."""
    limit_waits(stream, GREETING_SECONDS)
    connection.answer_challenge(stream, key)
    connection.deliver_challenge(stream, key)
    stream.send_bytes(json.dumps(facts).encode())


def _peer(address: Any) -> socket.socket:
    """Return a connection to a Unix socket of this node, or to a host and port."""
    if isinstance(address, bytes):
        peer = socket.socket(socket.AF_UNIX)
        peer.settimeout(GREETING_SECONDS)
        peer.connect(address)
    else:
        peer = socket.create_connection(address, GREETING_SECONDS)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    peer.setblocking(True)
    _end_with_node(peer, _ACTOR_SECONDS)
    return peer


def lift_limit(stream: Connection) -> None:
    """Let a stream that is up wait for jobs and batches; the pool has limits for these."""
    limit_waits(stream, math.inf)


def _end_with_node(peer: socket.socket, seconds: int) -> None:
    """Let a stream end when the other node is gone without a word: an idle one after ten seconds.

    One with unacknowledged bytes ends after ``seconds``.
    """
    if peer.family == socket.AF_UNIX:
        return
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("IDLE", 5), ("INTVL", 1), ("CNT", 5)):
        if hasattr(socket, f"TCP_KEEP{name}"):
            peer.setsockopt(socket.IPPROTO_TCP, getattr(socket, f"TCP_KEEP{name}"), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, seconds * 1000)


def shut(channel: Connection) -> None:
    """End a channel for both sides, also where a forked child holds a copy of it."""
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(channel.fileno())) as twin:
        twin.shutdown(socket.SHUT_RDWR)
