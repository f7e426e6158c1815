"""How long a wait may take, in the words of the standard library."""

from __future__ import annotations

# Polls count milliseconds in 32 bits, which is 24 days; who allows more than this sets no limit.
LONGEST_SECONDS = 7 * 24 * 3600.0


def wait_of(seconds: float) -> float | None:
    """Return how long to wait at most, as the standard library wants it: None without a limit.

    Examples
    --------
    >>> wait_of(-0.5), wait_of(60.0), wait_of(float("inf"))
    (0.0, 60.0, None)
    """
    return None if seconds > LONGEST_SECONDS else max(0.0, seconds)
