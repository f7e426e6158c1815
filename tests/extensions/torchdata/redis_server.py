"""A Redis server for tests: started, killed, stopped and limited by the test itself."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess

import pytest

PASSWORD = "s3cret-of-redis"


def need_redis():
    """Skip a test where the server or its client is not installed."""
    pytest.importorskip("redis")
    if shutil.which("redis-server") is None:
        pytest.skip("there is no redis-server on the PATH (Debian: apt-get install redis-server)")


class RedisServer:
    """Runs ``redis-server`` at one port of this machine, inside a ``with`` block."""

    def __init__(self, folder):
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._process = None

    @property
    def url(self):
        return f"redis://:{PASSWORD}@127.0.0.1:{self.port}/0"

    def start(self):
        """Start it, and wait until it answers."""
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--requirepass", PASSWORD]
        options += ["--save", "", "--appendonly", "no", "--dir", str(self.folder)]
        self._process = subprocess.Popen(["redis-server", *options], stdout=subprocess.PIPE)
        lines = iter(self._process.stdout.readline, b"")
        assert any(b"ready to accept connections" in line.lower() for line in lines)
        return self

    def kill(self):
        """Kill it; what it held is lost."""
        if self._process is not None:
            self.signal(signal.SIGKILL)
            self._process.wait()
            self._process.stdout.close()
            self._process = None

    def signal(self, number):
        self._process.send_signal(number)

    def ask(self, *command):
        """Return the answer to one command, from a connection of its own."""
        from redis import Redis

        with Redis.from_url(self.url) as client:
            return client.execute_command(*command)

    def entries(self):
        """Return the names of the items that it holds."""
        return sorted(self.ask("KEYS", "voxpipe:*"))

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.kill()
