"""The header of a blosc2 frame with an array in it, read without blosc2.

The format is C-Blosc2's (README_CFRAME_FORMAT.rst, README_B2ND_METALAYER.rst): MessagePack, of
which each entry begins with a byte that says its type.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.errors import BadHeader

# Magic, bytes of the header (int32) and of the frame (uint64).
_HEAD = struct.Struct(">2x8sxixQ")
_MAGIC = b"b2frame\0"
# Headers of plain arrays take 200 bytes; other layers of metadata may make them longer.
HEAD_BYTES = 4096
MOST_HEAD_BYTES = 1024**2
# In the map of layers: the name, then where its content lies.
_LAYER = b"\xa4b2nd\xd2"
_INT32, _INT64, _BIN32, _STR32 = 0xD2, 0xD3, 0xC6, 0xDB
_LIST, _LIST_MASK = 0x90, 0xF0


@dataclass(frozen=True)
class FrameHeader:
    """What is in a frame."""

    length: int
    """Of the frame, in bytes."""
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    blocks: tuple[int, ...]
    """Decode units inside a chunk."""
    dtype: np.dtype[Any]


def frame_sizes(head: bytes, name: str) -> tuple[int, int]:
    """Return the bytes of the header and of the whole frame, of the first 24 bytes of a file."""
    magic, header, length = _HEAD.unpack_from(head) if len(head) >= _HEAD.size else (b"", 0, 0)
    if magic != _MAGIC or not _HEAD.size <= header <= min(length, MOST_HEAD_BYTES):
        raise BadHeader(f"{name} is no sound blosc2 array.", do="Copy or write it again.")
    return header, length


def read_frame_header(head: bytes, name: str) -> FrameHeader:
    """Return what the header of a frame says.

    Raises
    ------
    BadHeader
        It makes no sense, or the frame holds no array.
    """
    header, length = frame_sizes(head, name)
    try:
        at = head.index(_LAYER, 0, header) + len(_LAYER)
        start = int.from_bytes(head[at : at + 4], "big")
        layer = _Reader(head[start:header], _BIN32)
        fields = layer.list_length()
        layer.skip(1)  # version
        axes = layer.small()
        shape, chunks, blocks = (layer.numbers(kind) for kind in (_INT64, _INT32, _INT32))
        layer.skip(1)  # 0: the type is said as NumPy does
        text = layer.text()
        dtype = np.dtype(text)
    except (ValueError, TypeError, IndexError, SyntaxError) as error:
        raise BadHeader(
            f"the header of {name} describes no array: {error}.", do="Copy or write it again."
        ) from None
    sizes = (*shape, *chunks, *blocks)
    if fields != 7 or {len(shape), len(chunks), len(blocks)} != {axes} or min(sizes) < 1:
        raise BadHeader(
            f"the header of {name} contradicts itself: shape {shape}, chunks {chunks}, blocks "
            f"{blocks}.",
            do="Copy or write it again.",
        )
    return FrameHeader(length, shape, chunks, blocks, dtype)


class _Reader:
    """Reads the entries of a layer in turn; ``ValueError`` where one is of another kind."""

    def __init__(self, data: bytes, kind: int) -> None:
        if data[0] != kind:
            raise ValueError("no layer where it should be")
        self._data = data[5 : 5 + int.from_bytes(data[1:5], "big")]
        self._at = 0

    def skip(self, count: int) -> None:
        self._at += count

    def small(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def list_length(self) -> int:
        head = self.small()
        if head & _LIST_MASK != _LIST:
            raise ValueError("no list where one should be")
        return head & ~_LIST_MASK

    def numbers(self, kind: int) -> tuple[int, ...]:
        width = 8 if kind == _INT64 else 4
        return tuple(self._number(kind, width) for _ in range(self.list_length()))

    def text(self) -> str:
        return self._bytes(self._number(_STR32, 4)).decode("ascii")

    def _number(self, kind: int, width: int) -> int:
        if self.small() != kind:
            raise ValueError("no number where one should be")
        return int.from_bytes(self._bytes(width), "big", signed=True)

    def _bytes(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count] if count >= 0 else b""
        if len(found) != count:
            raise ValueError("it ends early")
        self._at += count
        return found
