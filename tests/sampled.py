"""Parameters of which a sample belongs to the quick tests, and all to the slow ones."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def sampled(values: Iterable[Any], step: int = 2) -> list[Any]:
    """Return parameters for ``parametrize``: every ``step``-th is quick, the others are slow."""
    parameters = [value if isinstance(value, tuple) else (value,) for value in values]
    slow = pytest.mark.slow
    return [
        pytest.param(*one, marks=() if n % step == 0 else slow) for n, one in enumerate(parameters)
    ]
