"""Swap the decoder of a chain for a remote one: ``python examples/remote_decode.py``.

The adapter ``RemoteDecode`` puts a ``DecodeRemotely`` in the place of each ``Decode``. The user's
chain stays as it is written, and the batches stay equal. A decoder on a graphics card is swapped
in the same way: its pipe calls the card in the place of the server. The server of this example
runs in a thread of the same program.
"""

from __future__ import annotations

import io
import threading
import urllib.request
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import numpy as np
import torch

import voxpipe as vp
from voxpipe.adapters import Adapter
from voxpipe.datapipes import PerItem
from voxpipe.datapipes.iter import IterableWrapper
from voxpipe.graph import Pipe, Refused, RewriteResult, Rule, Site, Traits, parents_of, walk

LONGEST_WAIT = 10.0  # seconds for one answer of the server
# On this machine, so no proxy is used.
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def compress(array: np.ndarray[Any, Any]) -> bytes:
    """Return an array as it is stored: ``.npy``, compressed."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return zlib.compress(file.getvalue())


def to_tensor(content: bytes) -> torch.Tensor:
    """Return the tensor of the bytes of an ``.npy``."""
    return torch.from_numpy(np.load(io.BytesIO(content), allow_pickle=False))


class Decode(PerItem):
    """Decode the entry ``key`` of each item on this machine."""

    traits: ClassVar[Any] = Traits(per_item=True, voxels=True)

    def __init__(self, parent: Pipe, key: str, codec: str = "zlib") -> None:
        super().__init__(parent)
        self.key, self.codec = key, codec

    def apply(self, item: Any) -> Any:
        """Return the item with a tensor in the place of the stored bytes."""
        return {**item, self.key: to_tensor(self.decompress(item[self.key]))}

    def decompress(self, content: bytes) -> bytes:
        """Return the decompressed bytes."""
        return zlib.decompress(content) if self.codec == "zlib" else content


class DecodeRemotely(Decode):
    """Decode the entry ``key`` of each item at a server."""

    def __init__(self, parent: Pipe, key: str, url: str) -> None:
        super().__init__(parent, key)
        self.url = url

    def decompress(self, content: bytes) -> bytes:
        """Return the decompressed bytes; StoreUnavailable if the server does not answer."""
        try:
            with OPENER.open(self.url, data=content, timeout=LONGEST_WAIT) as answer:
                return bytes(answer.read())
        except OSError as error:
            msg = f"the decoder {self.url} does not answer: {error}."
            raise vp.errors.StoreUnavailable(
                msg, do="Start it, or leave RemoteDecode out."
            ) from None


class RemoteDecode(Adapter):
    """Decode at a server: put ``DecodeRemotely`` in the place of each ``Decode``.

    ``Decode("image") → DecodeRemotely("image", url)``
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def rules(self) -> Sequence[Rule]:
        """Return the one rule."""

        def match(site: Site) -> Any:
            if type(site.pipe) is not Decode:  # its subclass is the result
                return None
            codec = site.pipe.codec
            return site.pipe if codec == "zlib" else Refused(f"the server cannot decode {codec}")

        def build(pipe: Any) -> Pipe:
            return DecodeRemotely(parents_of(pipe)[0], pipe.key, self.url)

        return (Rule("decode remotely", match, build),)

    def rewrite(self, pipe: Pipe) -> RewriteResult:
        """Return the rewritten graph; GraphError for one without a decoder."""
        if not any(isinstance(one, Decode) for one in walk(pipe)):
            msg = "RemoteDecode found no Decode in the graph"
            raise vp.errors.GraphError(msg, do="Decode by Decode(pipe, key), or leave it out.")
        return super().rewrite(pipe)

    def __repr__(self) -> str:
        return f"RemoteDecode({self.url!r})"


class _Decoder(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        """Answer with the decompressed body."""
        content = zlib.decompress(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""


@contextmanager
def decoder() -> Iterator[str]:
    """Run a server that decodes, and yield its URL."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Decoder)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def chain(count: int = 8) -> Pipe:
    """Return a chain that decodes here: batches of two images (B, I, J)."""
    stored = [{"image": compress(np.full((4, 4), n, np.int16))} for n in range(count)]
    batches: Pipe = Decode(IterableWrapper(stored), "image").batch(2).collate()
    return batches


def main() -> None:
    """Compare the batches of both decoders."""
    with decoder() as url:
        here = vp.DataLoader2(chain(), seed=7)
        remote = vp.DataLoader2(chain(), [RemoteDecode(url)], seed=7)
        with here, remote:
            print(remote.explain())
            pairs = list(zip(here, remote, strict=True))
    equal = sum(torch.equal(one["image"], other["image"]) for one, other in pairs)
    print(f"{equal} of {len(pairs)} batches are equal")


if __name__ == "__main__":
    main()
