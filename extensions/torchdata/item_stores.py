"""Stores of entries within a bound of bytes: Redis, local folders, and URLs of fsspec."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from ...storage.disk_cache import make_directory, make_room
from ...storage.fsspec_ranges import file_system_of
from ...storage.location import is_url

REDIS = ("redis://", "rediss://", "unix://")
# Files of this store; any other file in its folder is the user's.
_OWN = re.compile(r"(^|/)[0-9a-f]{32}\.item(\.[0-9a-f]+\.part)?$")
# A store is listed, to make room, when this part of its bound was written.
_PART = 16
# Set a key, and remove the oldest keys beyond the bound. Sizes are kept apart, because the server
# may have removed keys by itself.
_PUT = """
local function add(size) return redis.call('HINCRBY', KEYS[3], 'total', size) end
local function size_of(key) return tonumber(redis.call('HGET', KEYS[3], key) or 0) end
redis.call('SET', KEYS[1], ARGV[1], unpack(ARGV, 4))
local total = add(#ARGV[1] - size_of(KEYS[1]))
redis.call('HSET', KEYS[3], KEYS[1], #ARGV[1])
redis.call('ZADD', KEYS[2], ARGV[2], KEYS[1])
while total > tonumber(ARGV[3]) do
  local key = redis.call('ZPOPMIN', KEYS[2])[1]
  if not key then break end
  total = add(-size_of(key))
  redis.call('HDEL', KEYS[3], key)
  redis.call('DEL', key)
end
"""


class _Redis:
    def __init__(self, url: str, options: Mapping[str, Any], timeout: float) -> None:
        from redis import Redis, backoff, exceptions, retry

        # One more attempt: a server that was started again has closed the connection.
        again = retry.Retry(backoff.NoBackoff(), 1, (exceptions.ConnectionError,))
        limits = {"socket_timeout": timeout, "socket_connect_timeout": timeout, "retry": again}
        self._client = Redis.from_url(url, **{**limits, **options})

    def get(self, key: str) -> Any:
        return self._client.get(f"voxpipe:{key}")

    def put(self, key: str, entry: bytes, most: int, ttl: float) -> None:
        keys = (f"voxpipe:{key}", "voxpipe-times", "voxpipe-sizes")
        life = () if ttl == float("inf") else ("PX", max(1, int(1000 * ttl)))
        self._client.eval(_PUT, len(keys), *keys, entry, time.time(), most, *life)


class _Files:
    def __init__(self, place: str, options: Mapping[str, Any], timeout: float) -> None:
        self._system, self._root = file_system_of(place, options)
        self._timeout, self._new = timeout, float("inf")
        if not is_url(place):
            make_directory(Path(place))

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        if not self._system.async_impl:
            return getattr(self._system, method)(*args, **options)
        from fsspec.asyn import sync

        call = getattr(self._system, f"_{method}")
        return sync(self._system.loop, call, *args, timeout=self._timeout, **options)

    def get(self, key: str) -> Any:
        with suppress(FileNotFoundError):
            return self._call("cat_file", f"{self._root}/{key}.item")
        return None

    def put(self, key: str, entry: bytes, most: int, ttl: float) -> None:
        path = f"{self._root}/{key}.item"
        # Objects appear whole; files by a rename.
        part = path if self._system.async_impl else f"{path}.{uuid4().hex}.part"
        self._call("pipe_file", part, entry)
        if part != path:
            with suppress(FileNotFoundError):  # another process made room
                self._system.mv(part, path)
        self._new += len(entry)
        if self._new * _PART >= most:
            self._new = 0
            self._make_room(most)

    def _make_room(self, most: int) -> None:
        self._system.invalidate_cache()
        own = [one for one in self._call("ls", self._root, detail=True) if _OWN.search(one["name"])]
        make_room([(_time_of(one), one["size"], one["name"]) for one in own], most, self._remove)

    def _remove(self, path: str) -> bool:
        with suppress(FileNotFoundError):  # another process makes room, too
            self._call("rm_file", path)
        return True


def _time_of(info: Mapping[str, Any]) -> float:
    """Return when an object was written, in seconds; 0.0 if the file system does not report it."""
    moment = next((info[n] for n in ("LastModified", "mtime", "created") if info.get(n)), 0.0)
    return float(moment.timestamp() if hasattr(moment, "timestamp") else moment)


def open_store(place: str, options: Mapping[str, Any], timeout: float) -> Any:
    """Return the store at a place; Redis connects at the first request."""
    return (_Redis if place.startswith(REDIS) else _Files)(place, options, timeout)
