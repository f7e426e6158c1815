"""How long a wait may take, in the words of the standard library."""

from __future__ import annotations

# Polls count milliseconds in 32 bits, which is 24 days; who allows more than this sets no limit.
LONGEST_SECONDS = 7 * 24 * 3600.0


def timeout_or_none(seconds: float) -> float | None:
    """Return how long to wait at most, as the standard library wants it: None without a limit.

    Examples
    --------
    >>> timeout_or_none(-0.5), timeout_or_none(60.0), timeout_or_none(float("inf"))
    (0.0, 60.0, None)
    """
    return None if seconds > LONGEST_SECONDS else max(0.0, seconds)
