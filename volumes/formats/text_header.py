"""Headers that are lines of text, before voxels that are none."""

from __future__ import annotations

from collections.abc import Iterator


def header_lines(head: bytes, at: int = 0) -> Iterator[tuple[str, int]]:
    r"""Yield each line from byte ``at`` on, without its end, and where the next one begins.

    Examples
    --------
    >>> list(header_lines(b"NDims = 3\n\xff"))
    [('NDims = 3', 10), ('\ufffd', 12)]
    """
    while at < len(head):
        end = head.find(b"\n", at)
        end = len(head) if end < 0 else end
        line = head[at:end].decode("utf-8", "replace")
        at = end + 1
        yield line, at


# No file system holds more bytes in one file.
_LONGEST = 2**63


def axis_lengths(text: str, count: int, most: int) -> tuple[int, ...] | None:
    """Return the lengths of ``count`` axes; None if they are others, or more than ``most``.

    Examples
    --------
    >>> axis_lengths("64 64 30", 3, 10), axis_lengths("64 0 30", 3, 10)
    ((64, 64, 30), None)
    """
    try:
        lengths = tuple(map(int, text.split()))
    except ValueError:
        return None
    fits = 1 <= count <= most and len(lengths) == count
    return lengths if fits and all(1 <= length < _LONGEST for length in lengths) else None
