"""Plain GETs: bodies in place, connections that stay, and everything unusual left to others."""

import asyncio
import datetime
import ssl
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voxpipe.testing.s3 import Fault
from voxpipe.volumes.stores import http_get, signed_get
from voxpipe.volumes.stores.http_get import Connections, UnusualAnswer, unchunked
from voxpipe.volumes.stores.ranges import ReadRange
from voxpipe.volumes.stores.remote import open_remote
from voxpipe.volumes.stores.retry import Retry

LIMITS = (10.0, 10.0)
LARGE = bytes(range(256)) * 1024


def told(body, *headers, status="200 OK"):
    """Return an answer as it is sent."""
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def chunked(*pieces):
    """Return a body in chunks."""
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (*pieces, b""))


@asynccontextmanager
async def serving(*scripts, context=None):
    """Serve connections: each sends its answers, one per request, and ends; yield what came."""
    seen, waiting, tasks = [], list(scripts), []

    async def serve(reader, writer):
        tasks.append(asyncio.current_task())
        for answer in waiting.pop(0):
            try:
                seen.append(await reader.readuntil(b"\r\n\r\n"))
            except (asyncio.IncompleteReadError, OSError):
                break  # the client has left
            for piece in [answer] if isinstance(answer, bytes) else answer:
                writer.write(piece)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        async with server:
            yield server.sockets[0].getsockname()[1], seen
    finally:
        await asyncio.gather(*tasks)


def asked(count, *scripts, limits=LIMITS):
    """Return what ``count`` GETs one after another return, and the requests that arrived."""

    async def work():
        async with serving(*scripts) as (port, seen):
            pool = Connections("127.0.0.1", port, limits)
            try:
                return [await pool.get("/k", {"host": "h"}) for _ in range(count)], seen
            finally:
                pool._close()

    return asyncio.run(work())


def test_a_connection_is_used_again():
    """Three answers of different sizes come over one connection."""
    script = [told(b"abc"), told(LARGE), told(b"", status="404 Not Found")]
    found, seen = asked(3, script)

    assert [each[:2] for each in found] == [(200, b"abc"), (200, LARGE), (404, b"")]
    assert [each.header("content-length") for each in found] == ["3", str(len(LARGE)), "0"]
    assert seen == [b"GET /k HTTP/1.1\r\nhost: h\r\n\r\n"] * 3


@given(st.lists(st.integers(1, len(told(LARGE)) - 1), max_size=5))
def test_where_an_answer_is_cut_does_not_matter(cuts):
    """The bytes are the same, however they arrive."""
    whole = told(LARGE)
    places = [0, *sorted(set(cuts)), len(whole)]
    pieces = [whole[a:b] for a, b in pairwise(places)]

    class Transport(asyncio.Transport):
        def write(self, data):
            pass

        def is_closing(self):
            return False

    async def work():
        connection = http_get._Connection(asyncio.get_running_loop(), 10.0)
        connection.connection_made(Transport())
        answer = asyncio.ensure_future(connection.ask(b""))
        await asyncio.wait([answer], timeout=0)
        for piece in pieces:
            rest = memoryview(piece)
            while len(rest):
                room = connection.get_buffer(-1)
                count = min(len(room), len(rest))
                room[:count] = rest[:count]
                connection.buffer_updated(count)
                rest = rest[count:]
        return await answer

    assert asyncio.run(work())[:2] == (200, LARGE)


def test_errors_come_in_chunks():
    """S3 does not say how long an error is."""
    error = b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n"
    found, _ = asked(2, [[error, chunked(b"<Code>", b"NoSuchKey</Code>")], told(b"next")])

    assert [each[:2] for each in found] == [(404, b"<Code>NoSuchKey</Code>"), (200, b"next")]


def test_a_connection_that_was_closed_while_idle_is_replaced():
    """The request goes again over a new one: nobody has seen it."""
    found, seen = asked(2, [told(b"one")], [told(b"two")])

    assert [each.body for each in found] == [b"one", b"two"]
    assert len(seen) == 2


def test_what_is_to_be_closed_is_not_used_again():
    """``Connection: close`` is obeyed."""
    found, _ = asked(2, [told(b"one", "Connection: close"), b""], [told(b"two")])

    assert [each.body for each in found] == [b"one", b"two"]


def test_a_body_that_is_cut_is_an_error():
    """Half an answer is not an answer; it is not asked for again here."""
    with pytest.raises(ConnectionResetError, match="in an answer"):
        asked(1, [told(LARGE)[:-1]])


def test_a_server_that_says_nothing_is_given_up():
    """The limit is the silence, not the length of an answer."""
    with pytest.raises(TimeoutError, match="nothing for"):
        asked(1, [b"", b""], limits=(10.0, 0.01))


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\n\r\nuntil the end",
        b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\n\r\na",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\nContent-Length: 1\r\n\r\na",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nnot hexadecimal\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nab",
        b"x" * (16 * 1024),
    ],
)
def test_what_is_unusual_is_left_to_others(answer):
    """No guess is made of where a body ends."""
    with pytest.raises(UnusualAnswer):
        asked(1, [answer])


def test_a_header_has_one_line():
    """Nothing is sent that could be read as another header."""

    async def work():
        await Connections("127.0.0.1", 1, LIMITS).get("/k", {"x": "a\r\ny: b"})

    with pytest.raises(ValueError, match="more than one line"):
        asyncio.run(work())


@given(st.lists(st.binary(min_size=1), max_size=4), st.data())
def test_chunks_end_where_they_say(pieces, data):
    """The whole gives the body; every beginning of it gives None."""
    whole = chunked(*pieces)
    cut = data.draw(st.integers(0, len(whole) - 1))

    assert unchunked(whole) == b"".join(pieces)
    assert unchunked(whole[:cut]) is None


def test_over_tls(tmp_path):
    """A certificate that is trusted is enough, and one that is not is refused."""
    theirs, ours = contexts(tmp_path)

    async def work():
        async with serving([told(LARGE), told(b"b")], [], context=theirs) as (port, _):
            pool = Connections("localhost", port, LIMITS, ours)
            found = [(await pool.get("/k", {"host": "h"})).body for _ in range(2)]
            pool._close()
            with pytest.raises(ssl.SSLCertVerificationError):
                await Connections("localhost", port, LIMITS, ssl.create_default_context()).get(
                    "/k", {"host": "h"}
                )
            return found

    assert asyncio.run(work()) == [LARGE, b"b"]


def contexts(folder):
    """Return TLS contexts of a server called localhost, and of a client that trusts it."""
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    begin = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(days=1)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=3))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    path = folder / "both.pem"
    path.write_bytes(
        certificate.public_bytes(encoding)
        + key.private_bytes(
            encoding, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    theirs.load_cert_chain(path)
    return theirs, ssl.create_default_context(cafile=path)


@pytest.fixture
def by_aiohttp(monkeypatch):
    """Count the signed requests that go over the connections of s3fs."""
    seen = []
    true = signed_get._sent_by_s3fs

    async def counted(client, request):
        seen.append(request.url)
        return await true(client, request)

    monkeypatch.setattr(signed_get, "_sent_by_s3fs", counted)
    return seen


@pytest.fixture
def opened(server, monkeypatch):
    """Return a function that opens the bucket, and what it learnt is new each time."""
    pytest.importorskip("s3fs")
    monkeypatch.setenv("VOXPIPE_REMOTE", "fsspec")
    (server.bucket / "a").write_bytes(LARGE)

    def open_it(**more):
        quick = Retry(deadline=60.0, first=0.001, most=0.002, attempt=10.0)
        found = open_remote("s3://bucket", {**server.storage_options, **more}, quick)
        signed_get._KNOWN.clear()
        signed_get._LANES.clear()
        return found

    return open_it


def test_buckets_are_read_over_connections_of_our_own(server, opened, by_aiohttp):
    """What arrives is the object, also where the connection broke in between."""
    found = opened()
    found.get("a")
    server.fail(Fault("reset", times=1), Fault("truncate", times=1))

    assert found.get_ranges([ReadRange("a", 1, 7), ReadRange("a"), ReadRange("none")]) == [
        LARGE[1:7],
        LARGE,
        None,
    ]
    assert by_aiohttp == []


@pytest.mark.parametrize(
    "more",
    [
        {"config_kwargs": {"max_pool_connections": 4}},
        {"config_kwargs": {"proxies": {"https": "http://127.0.0.1:9", "http": None}}},
    ],
)
def test_who_says_how_to_connect_is_obeyed(opened, by_aiohttp, more):
    """A bound on the connections is s3fs's to keep; a proxy of another scheme changes nothing."""
    found = opened(**more)
    found.get("a")

    assert found.get("a") == LARGE
    assert len(by_aiohttp) == ("max_pool_connections" in more["config_kwargs"])


def test_after_an_unusual_answer_s3fs_sends(opened, by_aiohttp, monkeypatch):
    """The request is sent again, and all later ones over the connections of s3fs."""
    found = opened()
    found.get("a")

    def unusual(head):
        raise UnusualAnswer

    monkeypatch.setattr(http_get, "parse_head", unusual)

    assert [found.get("a"), found.get("a")] == [LARGE, LARGE]
    assert len(by_aiohttp) == 2


def test_who_waits_without_end_is_obeyed(opened, by_aiohttp):
    """Botocore takes None for a limit; that wait is s3fs's, and what is read is the same."""
    found = opened(config_kwargs={"read_timeout": None})
    found.get("a")

    assert found.get("a") == LARGE
    assert len(by_aiohttp) == 1
