"""A web server for tests: with ranges or without, and with answers that break."""

from __future__ import annotations

import contextlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class WebServer:
    """Serves ``contents`` by path, inside a ``with`` block.

    Parameters
    ----------
    contents
        Bytes by path.
    ranges
        Whether it knows ranges.
    cuts
        How many answers end after ``cut_after`` bytes.
    fails
        How many are of ``status``.
    """

    def __init__(
        self, contents, *, ranges=True, cuts=0, cut_after=1000, fails=0, status=503, length=True
    ):
        self.contents, self.ranges, self.length = dict(contents), ranges, length
        self.cuts, self.cut_after, self.fails = cuts, cut_after, fails
        self.status = status
        self.version = "v1"
        self.headers = {}
        self.requests = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                server.answer(self)

            def log_message(self, *_):
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self):
        return f"http://127.0.0.1:{self._server.server_port}"

    def answer(self, request):
        path = request.path.partition("?")[0]
        self.requests.append((request.path, dict(request.headers)))
        request.close_connection = True
        content = self.contents.get(path)
        if self.fails:
            self.fails -= 1
            return self._refuse(request, self.status)
        if content is None:
            return self._refuse(request, 404)
        asked = re.match(r"bytes=(\d+)-", request.headers.get("Range", ""))
        start = int(asked[1]) if asked and self.ranges else 0
        if asked and self.ranges and start >= len(content):
            return self._refuse(request, 416)
        request.send_response(206 if asked and self.ranges else 200)
        if asked and self.ranges:
            last = len(content) - 1
            request.send_header("Content-Range", f"bytes {start}-{last}/{len(content)}")
        request.send_header("ETag", self.version)
        for name, value in self.headers.items():
            request.send_header(name, value)
        body = content[start:]
        if self.length:
            request.send_header("Content-Length", str(len(body)))
        request.send_header("Connection", "close")
        request.end_headers()
        if self.cuts and len(body) > self.cut_after:
            self.cuts -= 1
            body = body[: self.cut_after]
        # Whoever asked may have left.
        with contextlib.suppress(ConnectionError):
            request.wfile.write(body)
        return None

    @staticmethod
    def _refuse(request, status):
        request.send_response(status)
        request.send_header("Content-Length", "0")
        request.send_header("Connection", "close")
        request.end_headers()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
