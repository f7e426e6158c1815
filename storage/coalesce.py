"""Neighbouring byte ranges, joined: one request costs more than a few bytes in between."""

from __future__ import annotations

from collections.abc import Sequence

Span = tuple[int, int]
"""Half-open range of bytes."""


def gap_worth(latency: float, bandwidth: float, under_way: int) -> int:
    """Return the bytes between two spans that cost as much as one more request.

    A request costs its latency, shared with those that are under way beside it; bytes for
    nothing cost what the connection takes to send them.

    Parameters
    ----------
    latency
        Seconds until the first byte of an answer.
    bandwidth
        Bytes per second of one connection.
    under_way
        Requests that are under way at once.

    Examples
    --------
    >>> gap_worth(30e-3, 60e6, 1), gap_worth(30e-3, 60e6, 48)
    (1800000, 37500)
    """
    return round(latency * bandwidth / under_way)


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
