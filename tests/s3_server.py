"""A small S3 server for tests and benchmarks: a folder as buckets, as slow and broken as wanted.

It answers what readers ask (GET with ranges, HEAD, LIST version 2) and what writing needs (PUT,
also with ``If-None-Match: *``, DELETE of one or many, making a bucket). It listens to this machine
only, keeps to its folder, and answers who names its access key, which nobody can guess: other users
of the machine read and write nothing through it. Signatures are not computed. One thread serves
every connection and files go out by ``sendfile``, because it shares the processor with what it is
there to measure::

    with S3Server(folder, latency=0.03, bandwidth=60e6) as server:
        volume = vp.Volume("s3://bucket/a.zarr", storage_options=server.storage_options)

The limits: no multipart uploads, no versions, no more than one range per request. As a command
it serves a folder, alone or for as long as another command runs::

    python tests/s3_server.py FOLDER --latency 0.03 -- python train.py

What goes wrong is chosen while it runs (:meth:`S3Server.fail`)::

    server.fail(Fault("slow_down", times=2), Fault("hang", key="labels"))
    server.fail(FaultMix(share=0.2, seed=1))
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import os
import random
import re
import secrets
import socket
import struct
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from s3_http import Answer, Question, parse_question
from s3_objects import Buckets

Kind = Literal[
    "slow_down",
    "error",
    "timeout",
    "deny",
    "hang",
    "stall",
    "drip",
    "reset",
    "close",
    "truncate",
    "short",
    "shift",
    "etag",
    "claim",
    "garble",
    "expired",
    "missing",
    "whole",
    "page",
    "unsaid",
    "total",
    "redirect",
    "undated",
    "gzip",
    "encoded",
]
PASSING: tuple[Kind, ...] = (
    *("slow_down", "error", "timeout", "short", "shift", "stall"),
    *("drip", "reset", "close", "truncate", "etag", "whole"),
    *("page", "unsaid", "total", "redirect", "undated"),
)
"""What passes when it is tried again."""

HOST = "127.0.0.1"
# Bytes of a response between two looks at the clock; 4 ms of a stream of 60 MB/s.
_PIECE = 256 * 1024
# What a broken response still delivers.
_BROKEN_SHARE = 0.5
_LONGEST_HEAD = 64 * 1024
_MORE = getattr(socket, "MSG_MORE", 0)  # where there is none, the head goes by itself
# Of a dripping answer: bytes at once, and seconds between them.
_DROP, _DRIP_PAUSE = 64, 0.2
# What a length of an exbibyte says.
_CLAIMED = 2**60
# Reset instead of a polite end: (on, linger 0 s).
_RESET = struct.pack("ii", 1, 0)
COUNTS = "/-/counts"
"""Path that answers how many requests there were; no bucket is called ``-``."""

LOGIN = "/-/login"


@dataclass
class Fault:
    """What goes wrong, how often, and with which requests."""

    kind: Kind
    """503 SlowDown, 500, 403, connection reset in mid-body, body cut short, or no answer.

    ``timeout`` is 400 RequestTimeout, ``short`` half a body whose length says so, ``shift`` another
    range than asked, ``stall`` half a body and then silence, ``drip`` a body byte by byte,
    ``close`` a connection that ends without an answer, ``etag`` another version, ``claim`` a length
    of an exbibyte, ``garble`` as many other bytes under the right headers, ``expired`` 400
    ExpiredToken, ``missing`` 404 NoSuchKey, ``whole`` 200 with all of an object, ``page`` 200 with
    somebody's login page, ``unsaid`` a range that does not say which, ``total`` a range of an
    object of another size, ``redirect`` 302 to another host, ``undated`` a ``Last-Modified``
    that is no date, ``gzip`` a body that is compressed unasked, and ``encoded`` stored bytes under
    ``Content-Encoding: gzip``.
    """
    times: int | None = None
    """How many requests; None for all."""
    key: str = ""
    """Regular expression that the key must contain."""
    method: str = "GET"
    """Of which requests."""


class FaultMix:
    """Any of several things goes wrong with a share of the requests, drawn from a seed.

    Parameters
    ----------
    share
        Of all requests, between 0 and 1.
    seed
        Of what is drawn, in the order in which requests come.
    kinds
        What goes wrong, each as often as any other.
    methods
        With which requests.
    """

    def __init__(
        self,
        share: float,
        seed: int,
        kinds: Sequence[Kind] = PASSING,
        methods: Sequence[str] = ("GET", "HEAD"),
    ) -> None:
        self._share, self._kinds, self._methods = share, tuple(kinds), tuple(methods)
        self._random = random.Random(seed)
        self.drawn: Counter[Kind] = Counter()
        """How often each went wrong."""

    def draw(self, method: str) -> Fault | None:
        """Return what goes wrong with the next request."""
        if method not in self._methods or self._random.random() >= self._share:
            return None
        kind = self._random.choice(self._kinds)
        self.drawn[kind] += 1
        return Fault(kind, method=method)


@dataclass(frozen=True)
class Request:
    """One line of the log."""

    method: str
    key: str
    """``bucket/key``."""
    range: str
    """As asked, e.g. ``bytes=0-99``; empty for everything."""
    status: int
    """0 where nothing was answered."""
    sent: int
    """Bytes of the body."""


class S3Server:
    """Serves the folders in ``root`` as buckets, from a thread, inside a ``with`` block.

    Parameters
    ----------
    root
        The folder around the buckets: each folder in it is a bucket, whose files are the objects.
        ``s3://bucket/a.nii`` is ``root/bucket/a.nii``. A bucket has to exist, as a folder or by
        ``PUT``, before anything is written to it; ``root`` itself is none.
    latency
        Seconds before each answer.
    bandwidth
        Bytes per second of each connection; None for no limit.
    is_public
        Whether it answers requests without its key, too: plain URLs, other credentials.
    region
        Of the buckets: requests that are signed for another one are sent there, with 301. Any will
        do if it is empty.
    """

    def __init__(
        self,
        root: Path | str,
        *,
        latency: float = 0.0,
        bandwidth: float | None = None,
        is_public: bool = False,
        region: str = "",
    ) -> None:
        self.region = region
        self.latency, self.bandwidth, self.is_public = latency, bandwidth, is_public
        self._key, self._secret = f"AK{secrets.token_hex(16)}", secrets.token_hex(16)
        self.most_in_flight = 0
        self._in_flight = 0
        self._buckets = Buckets(Path(root))
        self._faults: list[Fault | FaultMix] = []
        self._log: list[Request] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="s3-server", daemon=True)
        self._socket = socket.create_server((HOST, 0), backlog=256)
        self._tasks: set[asyncio.Task[None]] = set()
        # A task that is cancelled before it begins closes nothing: what it serves is held here.
        self._clients: set[socket.socket] = set()

    @property
    def url(self) -> str:
        """``http://127.0.0.1:port``."""
        return f"http://{HOST}:{self._socket.getsockname()[1]}"

    @property
    def login(self) -> str:
        """Where a redirect leads: a page that refuses, on a host of another name."""
        return f"http://localhost:{self._socket.getsockname()[1]}{LOGIN}?token=LOGINSECRET"

    @property
    def storage_options(self) -> dict[str, Any]:
        """Options with which fsspec's s3 finds this server, its key included."""
        return {"key": self._key, "secret": self._secret, "endpoint_url": self.url}

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which every S3 client finds this server."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": self._key,
            "AWS_SECRET_ACCESS_KEY": self._secret,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    @property
    def requests(self) -> list[Request]:
        """What was answered since the beginning, or since :meth:`forget`."""
        return list(self._log)

    @property
    def counts(self) -> dict[str, int]:
        """Number of requests and bytes sent since then."""
        log = self.requests
        return {"requests": len(log), "bytes": sum(line.sent for line in log)}

    def forget(self) -> None:
        """Begin the log again."""
        self._log.clear()
        self.most_in_flight = 0

    def fail(self, *faults: Fault | FaultMix) -> None:
        """Let these things go wrong from now on, instead of what went wrong before.

        ``server.fail(Fault("deny"))`` answers each GET with 403, ``server.fail(Fault("slow_down",
        times=2, key="ct"))`` the next two for keys with "ct" with 503; ``server.fail()`` ends it.

        Raises
        ------
        TypeError
            For anything but a :class:`Fault`, such as its bare kind.
        """
        given: tuple[Any, ...] = faults
        for fault in given:
            if not isinstance(fault, (Fault, FaultMix)):
                msg = f"fail() takes faults, as in fail(Fault('deny')), got {fault!r}"
                raise TypeError(msg)
        self._faults = list(faults)

    def __enter__(self) -> S3Server:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._stop)
        self._thread.join()
        self._socket.close()
        self._loop.close()

    def _run(self) -> None:
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._accept)
        self._loop.run_forever()
        if self._tasks:
            self._loop.run_until_complete(asyncio.wait([*self._tasks]))
        for client in self._clients:
            client.close()

    def _stop(self) -> None:
        self._loop.remove_reader(self._socket)
        for task in self._tasks:
            task.cancel()
        self._loop.stop()

    def _accept(self) -> None:
        """Begin to serve who connects. At once: what a coroutine waits for is lost if it ends."""
        try:
            client, _ = self._socket.accept()
        except OSError:  # it went away meanwhile
            return
        client.setblocking(False)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._clients.add(client)
        task = self._loop.create_task(self._serve(client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, client: socket.socket) -> None:
        """Answer one connection until it ends."""
        held = bytearray()
        try:
            with client:
                while (question := await self._question(client, held)) is not None:
                    self._in_flight += 1
                    self.most_in_flight = max(self.most_in_flight, self._in_flight)
                    try:
                        goes_on = await self._answer(client, question)
                    finally:
                        self._in_flight -= 1
                    if not goes_on:
                        return
        except OSError:
            pass  # the client went away
        finally:
            self._clients.discard(client)

    async def _question(self, client: socket.socket, held: bytearray) -> Question | None:
        """Return the next request of a connection that is answered; None at its end."""
        try:
            while (question := await self._head(client, held)) is not None:
                if self._is_known(question) or question.path == LOGIN:
                    if question.waits:
                        await self._loop.sock_sendall(client, b"HTTP/1.1 100 Continue\r\n\r\n")
                    body = await self._body(client, question, held)
                    return None if body is None else question.with_body(body)
                if not await self._refuse(client, question, held):
                    return None
        except ValueError as error:
            answer = Answer.of_error(400, "InvalidRequest", str(error))
            await self._loop.sock_sendall(client, answer.head() + answer.body)
        return None

    async def _head(self, client: socket.socket, held: bytearray) -> Question | None:
        """Return the next request of a connection without its body; None at its end."""
        while (end := held.find(b"\r\n\r\n")) < 0:
            if len(held) > _LONGEST_HEAD or not await self._more(client, held):
                return None
        question = parse_question(bytes(held[:end]))
        del held[: end + 4]
        return question

    async def _body(
        self, client: socket.socket, question: Question, held: bytearray
    ) -> bytes | None:
        """Take the body of a request off its connection; None where that ends before."""
        while len(held) < question.length:
            if not await self._more(client, held):
                return None
        body = bytes(held[: question.length])
        del held[: question.length]
        return body

    def _is_known(self, question: Question) -> bool:
        """Whether who asks names the key of this server."""
        named = question.access_key.encode(errors="replace")
        return self.is_public or secrets.compare_digest(named, self._key.encode())

    async def _refuse(self, client: socket.socket, question: Question, held: bytearray) -> bool:
        """Refuse a request before a long body is taken in; return whether there may be another."""
        goes_on = question.length <= _LONGEST_HEAD and not question.waits
        if goes_on and await self._body(client, question, held) is None:
            return False
        begin = self._loop.time() + self.latency
        self._enter(question, _BROKEN["deny"].status, 0)
        await self._until(begin)
        await self._send(client, _BROKEN["deny"], question, begin)
        return goes_on

    async def _more(self, client: socket.socket, held: bytearray) -> bool:
        received = await self._loop.sock_recv(client, _PIECE)
        held += received
        return bool(received)

    async def _answer(self, client: socket.socket, question: Question) -> bool:
        """Answer one request; whether the connection goes on."""
        if question.path == LOGIN:
            await self._send(client, replace(_BROKEN["page"], status=403), question)
            return True
        if question.path == COUNTS:
            await self._send(client, Answer.of_text(json.dumps(self.counts)), question)
            return True
        begin = self._loop.time() + self.latency
        if self.region and question.region not in ("", self.region):
            away = Answer.of_error(301, "PermanentRedirect", "Use the endpoint of the bucket.")
            away = replace(away, headers={**away.headers, "x-amz-bucket-region": self.region})
            self._enter(question, away.status, 0)
            await self._send(client, away, question, begin)
            return True
        fault = self._fault(question)
        if fault is None and question.method == "GET":
            # Nothing changes by looking now, and the wait for the first bytes is part of one.
            answer = self._buckets.answer(question)
            await self._until(begin + self._seconds(min(_PIECE, answer.to_send)))
        else:
            await self._until(begin)
            kind = fault.kind if fault is not None else None
            if kind in ("hang", "close"):
                self._enter(question, 0, 0)
                if kind == "close":
                    return False
                await asyncio.Event().wait()
            asked = question if kind != "whole" else question.without_range()
            answer = _BROKEN.get(kind or "") or self._buckets.answer(asked)
            if kind == "redirect":
                answer = replace(answer, headers={"Location": self.login})
        if fault is not None and fault.kind not in _BROKEN:
            answer = _spoilt(answer, fault.kind)
        # Entered before it is sent: who has the answer finds it in the log.
        self._enter(question, answer.status, 0 if question.method == "HEAD" else answer.to_send)
        if fault is not None and fault.kind == "drip":
            return await self._drip(client, answer, question)
        await self._send(client, answer, question, begin)
        if fault is not None and fault.kind == "stall" and answer.to_send < answer.length:
            await asyncio.Event().wait()
        if fault is not None and fault.kind == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        return answer.to_send == answer.length

    async def _drip(self, client: socket.socket, answer: Answer, question: Question) -> bool:
        """Send an answer drop by drop."""
        await self._loop.sock_sendall(client, answer.head())
        body = b"" if question.method == "HEAD" else answer.content()
        for at in range(0, len(body), _DROP):
            await self._loop.sock_sendall(client, body[at : at + _DROP])
            await asyncio.sleep(_DRIP_PAUSE)
        return True

    def _seconds(self, count: int) -> float:
        """Return how long bytes of a body take."""
        return count / self.bandwidth if self.bandwidth else 0.0

    async def _until(self, due: float) -> None:
        pause = due - self._loop.time()
        if pause > 0:
            await asyncio.sleep(pause)

    def _fault(self, question: Question) -> Fault | None:
        for fault in self._faults:
            if isinstance(fault, FaultMix):
                drawn = fault.draw(question.method)
                if drawn is not None:
                    return drawn
                continue
            if fault.times == 0 or fault.method != question.method:
                continue
            if re.search(fault.key, question.path):
                if fault.times is not None:
                    fault.times -= 1
                return fault
        return None

    def _enter(self, question: Question, status: int, sent: int) -> None:
        key = question.path.lstrip("/")
        self._log.append(Request(question.method, key, question.range, status, sent))

    async def _send(
        self, client: socket.socket, answer: Answer, question: Question, begin: float = 0.0
    ) -> None:
        """Send an answer whose body begins at ``begin`` of the loop's clock."""
        head = answer.head()
        if question.method == "HEAD" or answer.file is None:
            body = b"" if question.method == "HEAD" else answer.body[: answer.to_send]
            await self._loop.sock_sendall(client, head + body)
            return
        sent = 0
        with open(answer.file, "rb", buffering=0) as file:
            while sent < answer.to_send:
                piece = min(_PIECE, answer.to_send - sent) if self.bandwidth else answer.to_send
                await self._until(begin + self._seconds(sent + piece))
                if head:
                    # Beside the first bytes: whoever reads is woken once. All that was asked
                    # for before has been taken, so there is room for it.
                    rest, head = head[client.send(head, _MORE) :], b""
                    await self._loop.sock_sendall(client, rest)
                start = answer.start + sent
                gone = _sent_at_once(client, file, start, piece)
                gone = gone or await self._loop.sock_sendfile(client, file, start, piece)
                if not gone:
                    return
                sent += gone
        if head:
            await self._loop.sock_sendall(client, head)


def _sent_at_once(client: socket.socket, file: FileIO, start: int, count: int) -> int:
    """Send what there is room for, without the event loop's preparations to wait for more."""
    try:
        return os.sendfile(client.fileno(), file.fileno(), start, count)
    except (BlockingIOError, AttributeError):  # AttributeError: not every system has it
        return 0


_BROKEN: dict[str, Answer] = {
    "slow_down": Answer.of_error(503, "SlowDown", "Please reduce your request rate."),
    "error": Answer.of_error(500, "InternalError", "We encountered an internal error."),
    "deny": Answer.of_error(403, "AccessDenied", "Access Denied"),
    "expired": Answer.of_error(400, "ExpiredToken", "The provided token has expired."),
    "missing": Answer.of_error(404, "NoSuchKey", "The specified key does not exist."),
    "timeout": Answer.of_error(400, "RequestTimeout", "Your socket connection was not read from."),
    "page": Answer.of_text("<html><body>Please log in.</body></html>", kind="text/html"),
    "redirect": Answer.of_error(302, "Found"),
}


_HEADERS: dict[str, Callable[[dict[str, str]], dict[str, str]]] = {
    "etag": lambda right: {**right, "ETag": '"of-another-version"'},
    "unsaid": lambda right: {n: v for n, v in right.items() if n != "Content-Range"},
    "total": lambda right: {n: f"{v}0" if n == "Content-Range" else v for n, v in right.items()},
    "undated": lambda right: {**right, "Last-Modified": "some day"},
    "encoded": lambda right: {**right, "Content-Encoding": "gzip"},
}
"""What is wrong in the head of an answer whose body is right."""


def _spoilt(answer: Answer, kind: Kind) -> Answer:
    """Return an answer of which something is wrong."""
    if kind in ("reset", "truncate", "stall"):
        return answer.cut(int(answer.length * _BROKEN_SHARE))
    if answer.file is None:  # an error as it is
        return answer
    if kind == "short":
        return answer.shortened(int(answer.length * _BROKEN_SHARE))
    if kind == "shift":
        return answer.shift()
    if kind in _HEADERS:
        return replace(answer, headers=_HEADERS[kind](answer.headers))
    if kind == "garble":
        return replace(answer, file=None, body=bytes(255 - byte for byte in answer.content()))
    if kind == "gzip":
        body = gzip.compress(answer.content())
        headers = {**answer.headers, "Content-Encoding": "gzip"}
        return replace(
            answer, file=None, body=body, headers=headers, length=len(body), to_send=len(body)
        )
    if kind == "claim":
        return replace(answer, length=_CLAIMED)
    return answer


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve a folder until standard input ends, or for as long as a command runs."""
    parser = argparse.ArgumentParser(
        prog="s3_server.py",
        description="Serve a folder as S3.",
        epilog="What follows -- is a command to run with the server's AWS_ variables.",
    )
    parser.add_argument("folder", type=Path, help="its folders are the buckets")
    parser.add_argument("--latency", type=float, default=0.0, help="seconds before each answer")
    parser.add_argument("--bandwidth", type=float, help="bytes per second of each connection")
    given = list(sys.argv[1:] if arguments is None else arguments)
    # By hand: argparse loses what follows ``--`` where options stand before it.
    end = given.index("--") if "--" in given else len(given)
    chosen = parser.parse_args(given[:end])
    command = given[end + 1 :]
    chosen.folder.mkdir(parents=True, exist_ok=True)
    with S3Server(chosen.folder, latency=chosen.latency, bandwidth=chosen.bandwidth) as server:
        if command:
            environment = {**os.environ, **server.environment}
            return subprocess.run(command, env=environment, check=False).returncode
        # The second line is for a client that is no child: nobody else may know the key.
        sys.stdout.write(f"{server.url}\n{json.dumps(server.environment)}\n")
        sys.stdout.flush()
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
