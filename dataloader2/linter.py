"""torchdata's check that items are shuffled before workers share them out."""

from __future__ import annotations

from ..adapters.lint import NAMES, SHARDS, Lint
from ..graph import Pipe

__all__ = ["_check_shuffle_before_sharding"]


def _check_shuffle_before_sharding(datapipe: Pipe) -> bool:
    """Whether on every path to every ``sharding_filter`` there is a ``shuffle`` before it.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> source = IterableWrapper(range(4))
    >>> _check_shuffle_before_sharding(source.shuffle().sharding_filter())
    True
    >>> _check_shuffle_before_sharding(source.sharding_filter().shuffle())
    False
    """
    mistakes = Lint(ignore=set(NAMES) - {SHARDS}).mistakes(datapipe)
    return not mistakes
