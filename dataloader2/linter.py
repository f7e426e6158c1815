"""torchdata's check that items are shuffled before workers share them out."""

from __future__ import annotations

from ..adapters.lint import NAMES, SHARDS, Lint
from ..graph import Pipe

__all__ = ["_check_shuffle_before_sharding"]


def _check_shuffle_before_sharding(datapipe: Pipe) -> bool:
    """Whether on every path to every ``sharding_filter`` there is a ``shuffle`` before it."""
    return not Lint(ignore=set(NAMES) - {SHARDS}).mistakes(datapipe)
