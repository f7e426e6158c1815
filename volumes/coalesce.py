"""Neighbouring byte ranges, joined: one request costs more than a few bytes in between."""

from __future__ import annotations

from collections.abc import Sequence

Span = tuple[int, int]
"""Half-open range of bytes."""


def coalesce(spans: Sequence[Span], gap: int, most: int) -> list[Span]:
    """Join spans that lie at most ``gap`` bytes apart, up to ``most`` bytes in one.

    Parameters
    ----------
    spans
        Sorted by their beginning. They may overlap.
    gap
        Bytes between two spans that are worth reading for nothing.
    most
        Longest joined span. A single span may be longer.

    Examples
    --------
    >>> coalesce([(0, 10), (12, 20), (90, 99)], gap=5, most=100)
    [(0, 20), (90, 99)]
    >>> coalesce([(0, 10), (10, 20)], gap=5, most=15)
    [(0, 10), (10, 20)]
    """
    joined: list[Span] = []
    for start, stop in spans:
        if joined:
            first, last = joined[-1]
            if start - last <= gap and max(stop, last) - first <= most:
                joined[-1] = (first, max(stop, last))
                continue
        joined.append((start, stop))
    return joined
