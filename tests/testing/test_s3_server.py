"""The test server is S3 as far as readers see it, and fails as it is told."""

import gc
import http.client
import os
import random
import socket
import subprocess
import sys
import time
import warnings
from urllib.parse import urlsplit
from xml.etree import ElementTree

import pytest
import s3_server
from hypothesis import given
from hypothesis import strategies as st
from s3_http import parse_range
from s3_server import Fault, S3Server

CONTENT = bytes(range(256)) * 40
SPACE = "{http://s3.amazonaws.com/doc/2006-03-01/}"


@pytest.fixture
def server(tmp_path):
    (tmp_path / "bucket" / "a").mkdir(parents=True)
    (tmp_path / "bucket" / "a" / "x").write_bytes(CONTENT)
    with S3Server(tmp_path, is_public=True) as running:
        yield running


def ask(server, method, path, headers=None, body=None):
    """Return status, headers and body of one request."""
    line = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=20)
    try:
        line.request(method, path, body, headers or {})
        answer = line.getresponse()
        return answer.status, dict(answer.headers), answer.read()
    finally:
        line.close()


@pytest.mark.parametrize(
    ("asked", "expected", "told"),
    [
        ("bytes=0-9", CONTENT[:10], "bytes 0-9/10240"),
        ("bytes=-20", CONTENT[-20:], "bytes 10220-10239/10240"),
        ("bytes=10230-20000", CONTENT[10230:], "bytes 10230-10239/10240"),
        ("bytes=10000-", CONTENT[10000:], "bytes 10000-10239/10240"),
    ],
)
def test_ranges(server, asked, expected, told):
    """A range is answered with 206 and says what it is."""
    status, headers, body = ask(server, "GET", "/bucket/a/x", {"Range": asked})

    assert (status, headers["Content-Range"], body) == (206, told, expected)
    assert [(line.range, line.sent) for line in server.requests] == [(asked, len(expected))]


@given(st.integers(1, 50), st.integers(0, 60), st.integers(0, 60))
def test_ranges_are_those_of_slices(size, start, more):
    """Whatever is asked for: the slice, or nothing where it would be empty."""
    content = bytes(range(size))
    span = parse_range(f"bytes={start}-{start + more}", size)

    expected = content[start : start + more + 1]
    assert (content[span[0] : span[1]] if span else b"") == expected


def test_objects_come_and_go(server):
    """PUT, GET, HEAD and DELETE of one object with an odd name."""
    assert ask(server, "PUT", "/bucket/new%20one/y", body=b"12345")[0] == 200
    status, headers, body = ask(server, "HEAD", "/bucket/new%20one/y")
    assert (status, headers["Content-Length"], body) == (200, "5", b"")
    assert ask(server, "GET", "/bucket/new%20one/y")[2] == b"12345"
    assert ask(server, "DELETE", "/bucket/new%20one/y")[0] == 204
    status, _, body = ask(server, "GET", "/bucket/new%20one/y")
    assert status == 404
    assert b"NoSuchKey" in body
    assert b"NoSuchBucket" in ask(server, "GET", "/nowhere/y")[2]
    assert ask(server, "GET", "/bucket/../../etc/passwd")[0] == 400


@pytest.mark.parametrize("delimiter", ["", "%2F"])
@pytest.mark.parametrize("most", [1, 2, 1000])
def test_listing_in_pages(server, tmp_path, most, delimiter):
    """However small the pages, all keys or folders are listed once."""
    for name in ("a/z", "b/1", "b/2", "c", "d/e/f"):
        (tmp_path / "bucket" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "bucket" / name).write_bytes(b"1")
    found, after = [], ""
    while True:
        query = f"list-type=2&max-keys={most}&delimiter={delimiter}&continuation-token={after}"
        _, _, body = ask(server, "GET", f"/bucket?{query}")
        page = ElementTree.fromstring(body.decode())
        found += [node.text for node in page.iter(f"{SPACE}Key")]
        found += [node[0].text for node in page.iter(f"{SPACE}CommonPrefixes")]
        after = page.findtext(f"{SPACE}NextContinuationToken")
        if not after:
            break
        after = "".join(f"%{byte:02X}" for byte in after.encode())

    whole = ["a/x", "a/z", "b/1", "b/2", "c", "d/e/f"]
    assert sorted(found) == (["a/", "b/", "c", "d/"] if delimiter else whole)


@pytest.mark.parametrize(
    ("kind", "status", "code"),
    [("slow_down", 503, b"SlowDown"), ("error", 500, b"InternalError"), ("deny", 403, b"Denied")],
)
def test_errors_on_request(server, kind, status, code):
    """So many requests get the error, the next gets the object; other keys are left alone."""
    server.fail(Fault(kind, times=1, key="a/x"))

    assert ask(server, "GET", "/bucket/a/y")[0] == 404
    found, _, body = ask(server, "GET", "/bucket/a/x")
    assert (found, code in body) == (status, True)
    assert ask(server, "GET", "/bucket/a/x")[2] == CONTENT


@pytest.mark.parametrize("kind", ["reset", "truncate"])
def test_bodies_cut_short(server, kind):
    """Half of the body comes, then the connection ends."""
    server.fail(Fault(kind))

    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        ask(server, "GET", "/bucket/a/x")
    assert server.requests[0].sent == len(CONTENT) // 2


def test_latency_and_bandwidth_are_kept(tmp_path):
    """An answer takes at least what it should; at most cannot be promised."""
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x").write_bytes(bytes(100_000))
    with S3Server(tmp_path, latency=0.05, bandwidth=1e6, is_public=True) as server:
        begin = time.monotonic()
        assert len(ask(server, "GET", "/b/x")[2]) == 100_000
        assert time.monotonic() - begin >= 0.15


def test_a_command_finds_the_server(tmp_path):
    """The module serves a folder while a command runs, and returns its exit status."""
    code = (
        "import os, sys, urllib.request as r\n"
        "url = os.environ['AWS_ENDPOINT_URL']\n"
        "signed = {'Authorization': 'Credential=' + os.environ['AWS_ACCESS_KEY_ID'] + '/x'}\n"
        "r.urlopen(r.Request(url + '/b', method='PUT', headers=signed)).close()\n"
        "sys.exit(5)"
    )
    command = [sys.executable, s3_server.__file__, str(tmp_path / "root"), "--"]

    found = subprocess.run([*command, sys.executable, "-c", code], timeout=60)

    assert found.returncode == 5
    assert (tmp_path / "root" / "b").is_dir()


OUTSIDE = [
    "//{}",
    "/bucket//{}",
    "/bucket/..%2F..{}",
    "/bucket/a/../../x{}",
    "/bucket%2F%2F{}",
    "/%2e%2e/x",
]


@pytest.mark.parametrize("path", [*OUTSIDE, "/bucket/out/secret", "/out/secret"])
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE"])
def test_nothing_outside_the_folder_is_reached(tmp_path, method, path):
    """Neither by absolute paths, nor by dots, nor through links that lead away."""
    inside, outside = tmp_path / "served", tmp_path / "outside"
    (inside / "bucket").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret").write_bytes(b"secret")
    (inside / "bucket" / "out").symlink_to(outside)
    (inside / "out").symlink_to(outside)
    with S3Server(inside, is_public=True) as server:
        status, _, body = ask(server, method, path.format(outside / "secret"), body=b"changed")

    assert status == 400
    assert b"secret" not in body
    assert [file.read_bytes() for file in outside.iterdir()] == [b"secret"]


def test_nothing_outside_is_listed_or_deleted(server, tmp_path):
    """A prefix that leads away is refused; keys that do are left alone."""
    (tmp_path / "other").write_bytes(b"kept")

    assert ask(server, "GET", "/bucket?list-type=2&prefix=../")[0] == 400
    assert ask(server, "GET", "/bucket?list-type=2&prefix=/etc/")[0] == 400
    keys = "".join(f"<Object><Key>{key}</Key></Object>" for key in ("../other", tmp_path / "other"))
    body = f"<Delete>{keys}</Delete>"
    assert ask(server, "POST", "/bucket?delete", body=body)[0] == 200
    assert (tmp_path / "other").read_bytes() == b"kept"


def test_another_user_is_refused(tmp_path):
    """Without its key, and with another, the server answers 403, whatever is asked."""
    (tmp_path / "bucket").mkdir()
    (tmp_path / "bucket" / "x").write_bytes(CONTENT)
    with S3Server(tmp_path) as server, S3Server(tmp_path) as other:
        for options in ({}, other.storage_options):
            signed = {"Authorization": f"Credential={options.get('key')}/d"} if options else {}
            for method, path in (
                ("GET", "/bucket/x"),
                ("PUT", "/bucket/x"),
                ("GET", "/bucket?list-type=2"),
            ):
                assert ask(server, method, path, signed, b"y")[0] == 403
        own = {"Authorization": f"Credential={server.storage_options['key']}/d"}
        assert ask(server, "GET", "/bucket/x", own)[2] == CONTENT
        query = f"?X-Amz-Credential={server.storage_options['key']}%2Fd"
        assert ask(server, "GET", f"/bucket/x{query}")[2] == CONTENT


def raw(server, sent):
    """Return the status of what is answered to bytes; with 400 the connection ends."""
    place = urlsplit(server.url)
    with socket.create_connection((place.hostname, place.port), timeout=5) as line:
        line.sendall(sent)
        got = line.recv(65536)
        status = int(got.split()[1])
        if b"400 Bad" in got:
            assert line.recv(1) == b""
        return status


@pytest.mark.parametrize(
    "sent",
    [
        b"GET\r\n\r\n",
        b"PUT /bucket/k HTTP/1.1\r\nContent-Length: abc\r\n\r\n",
        b"PUT /bucket/k HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
        b"PUT /bucket/k HTTP/1.1\r\nContent-Encoding: aws-chunked\r\nContent-Length: 3\r\n\r\nabc",
    ],
)
def test_what_is_no_request_is_told(server, sent):
    """400, and no traceback."""
    assert raw(server, sent) == 400


@pytest.mark.parametrize("path", ["/bucket/k", "/-/counts"])
def test_a_key_of_other_letters_is_refused(tmp_path, path):
    """As any other; the counts are told to nobody else either."""
    with S3Server(tmp_path) as server:
        for header in (b"", b"Authorization: AWS4 Credential=\xe9/x\r\n"):
            asked = b"GET " + path.encode() + b" HTTP/1.1\r\n" + header + b"\r\n"
            assert raw(server, asked) == 403
        mine = f"Credential={server.storage_options['key']}/x"
        assert ask(server, "GET", "/-/counts", {"Authorization": mine})[0] == 200


def test_the_body_of_a_stranger_is_not_taken_in(tmp_path):
    """The answer comes before it; a small one is taken off the connection, which goes on."""
    with S3Server(tmp_path) as server:
        head = b"PUT /bucket/k HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n"
        assert raw(server, head) == 403
        assert raw(server, head.replace(b"\r\n\r\n", b"\r\nExpect: 100-continue\r\n\r\n")) == 403
        line = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=20)
        for _ in range(2):
            line.request("PUT", "/bucket/k", b"some bytes")
            assert line.getresponse().read().count(b"AccessDenied") == 1
        line.close()


def stop_after(turns, loop, stop):
    """Stop a server so many turns of its event loop later."""
    loop.call_soon(*((stop_after, turns - 1, loop, stop) if turns else (stop,)))


def serve_one(folder, turns):
    """Serve nobody for long: so many turns after somebody has connected, the server stops."""
    with socket.socket() as line, S3Server(folder, is_public=True) as server:
        place = urlsplit(server.url)

        def connect():
            line.connect((place.hostname, place.port))
            stop_after(turns, server._loop, server._stop)

        server._loop.call_soon_threadsafe(connect)
        server._thread.join(10)


@pytest.mark.parametrize("turns", range(5))
def test_a_server_that_stops_closes_each_connection(tmp_path, turns):
    """Also one that it has just accepted, and has not begun to serve: at no moment is it lost."""
    with warnings.catch_warnings(record=True, action="always") as told:
        serve_one(tmp_path, turns)
        gc.collect()

    assert [str(each.message) for each in told] == []


PIECES = [
    *(
        "/",
        "//",
        "..",
        "%2e",
        "%00",
        "%",
        "%zz",
        "%C3%28",
        "%F0",
        "bucket",
        "a",
        "x",
        "pipe",
        "dir",
    ),
    *("?", "&", "=", "list-type=2", "max-keys=", "-1", "1e9", "9" * 30, "prefix=", "delimiter="),
    *("continuation-token=", "start-after=", "delete", "uploads", "encoding-type=url", "\xff", "#"),
    *("k" * 300, "http://h/", "*", ";", "a b", "\t", "bytes=", "0-", "-0", "5-2", "-", "x-y", ","),
]
HEADS = [
    *("Range", "If-Match", "If-None-Match", "Content-Length", "Authorization", "Expect", "Host"),
    *("Content-Encoding", "Transfer-Encoding", ":", ""),
]


def malformed(draw):
    """Return a request of pieces that are right, put together in a way that is not."""

    def some(most):
        return "".join(draw.choice(PIECES) for _ in range(draw.randrange(most)))

    method = draw.choice(["GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS", "get", "", "G\xe9T"])
    place = draw.choice(["/bucket/a/x", "/bucket/a/pipe", "/bucket", "/bucket?list-type=2&", ""])
    lines = [f"{method} {place}{some(5)} HTTP/1.1"]
    lines += [f"{draw.choice(HEADS)}: {some(4)}" for _ in range(draw.randrange(4))]
    lines += [f"Range: bytes={some(3)}"] * draw.randrange(2)
    return "\r\n".join([*lines, "", some(6)]).encode("latin-1")


def test_no_request_stops_the_server(server, tmp_path):
    """Whatever it is made of, a FIFO, a folder and a lost link among what it names included."""
    folder = tmp_path / "bucket" / "a"
    os.mkfifo(folder / "pipe")
    (folder / "dir").mkdir()
    (folder / "lost").symlink_to("nowhere")
    told, draw, answered = [], random.Random(0), 0
    server._loop.set_exception_handler(lambda loop, context: told.append(context))
    place = urlsplit(server.url)
    for _ in range(400):
        sent = malformed(draw)
        with socket.create_connection((place.hostname, place.port), timeout=5) as line:
            line.sendall(sent + b"\r\n\r\n")
            line.shutdown(socket.SHUT_WR)
            got = b""
            while piece := line.recv(65536):
                got += piece
        # An answer and no more, or none to what never ends.
        assert not got or got.startswith(b"HTTP/1.1 "), sent
        answered += bool(got)
    assert answered > 300
    gc.collect()  # asyncio tells what nobody looked at when it is freed
    (tmp_path / "bucket" / "z").write_bytes(CONTENT)
    assert ask(server, "GET", "/bucket/z")[2] == CONTENT
    assert told == []


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/bucket/a/pipe", {}, 404),
        ("HEAD", "/bucket/a/pipe", {}, 404),
        ("PUT", "/bucket/a/pipe", {}, 400),
        ("PUT", "/bucket/a/x/below", {}, 400),
        ("DELETE", "/bucket/a/dir", {}, 204),
        ("PUT", f"/bucket/{'k' * 300}", {}, 400),
        ("GET", f"/bucket/{'k' * 300}", {}, 404),
        ("GET", "/bucket?list-type=2&max-keys=many", {}, 400),
        ("GET", "/bucket?list-type=2&max-keys=-1", {}, 400),
        ("GET", "/bucket?list-type=2&continuation-token=%00", {}, 400),
        ("POST", "/bucket?delete", {}, 400),
        # As S3: what is no range is not looked at; what no byte is in cannot be sent.
        ("GET", "/bucket/a/x", {"Range": "bytes=a-b"}, 200),
        ("GET", "/bucket/a/x", {"Range": "bytes=5-2"}, 200),
        ("GET", "/bucket/a/x", {"Range": "lines=1-2"}, 200),
        ("GET", "/bucket/a/x", {"Range": "bytes=-0"}, 416),
        ("GET", "/bucket/a/x", {"Range": "bytes=99999-"}, 416),
    ],
)
def test_what_s3_would_not_do_is_answered_as_by_s3(server, tmp_path, method, path, headers, status):
    """By a status, at once."""
    os.mkfifo(tmp_path / "bucket" / "a" / "pipe")
    (tmp_path / "bucket" / "a" / "dir").mkdir()

    assert ask(server, method, path, headers, b"\xff" if method == "POST" else None)[0] == status
    assert ask(server, "GET", "/bucket?list-type=2")[2].count(b"<Key>") == 1
