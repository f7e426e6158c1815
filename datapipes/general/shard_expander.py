"""Names of shards in braces, written out."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, ClassVar

from ...graph import Pipe, Traits
from ..datapipe import DataPipe
from ..forms import offered

_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


def shards(pattern: str) -> Iterator[str]:
    """Yield the names that a pattern stands for, the last braces fastest.

    Raises
    ------
    ValueError
        The bounds do not make sense.

    Examples
    --------
    >>> list(shards("{a}-{08..10}.tar")), list(shards("x-{8..10}"))
    (['{a}-08.tar', '{a}-09.tar', '{a}-10.tar'], ['x-8', 'x-9', 'x-10'])
    >>> list(shards("{0..1}{0..1}"))
    ['00', '01', '10', '11']
    """
    found = _RANGE.search(pattern)
    if found is None:
        yield pattern
        return
    low, high = found.groups()
    if len(low) < len(high) and low.startswith("0") and low != "0":
        msg = f"shard_expand: low bound must not start with 0 if it is shorter, got {found[0]}"
        raise ValueError(msg)
    if len(low) > len(high):
        msg = f"shard_expand: low bound must be shorter than high bound, got {found[0]}"
        raise ValueError(msg)
    if int(low) > int(high):
        msg = f"shard_expand: bad range in shard spec {pattern}"
        raise ValueError(msg)
    # As many digits as both bounds have, if the lower one shows its zeros.
    digits = len(low) if len(low) == len(high) and low.startswith("0") else 1
    for number in range(int(low), int(high) + 1):
        for rest in shards(pattern[found.end() :]):
            yield f"{pattern[: found.start()]}{number:0{digits}d}{rest}"


@offered("shard_expand")
class ShardExpander(DataPipe):
    """Yield the names of shards that patterns like ``"ct-{000..127}.tar"`` stand for.

    No storage is asked.

    Parameters
    ----------
    parent
        Yields patterns; a name without braces stands for itself.

    Raises
    ------
    ValueError
        At an item whose bounds do not make sense.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> list(IterableWrapper(["ct-{09..11}.tar", "extra.tar"]).shard_expand())
    ['ct-09.tar', 'ct-10.tar', 'ct-11.tar', 'extra.tar']
    """

    traits: ClassVar[Any] = Traits()

    def __init__(self, parent: Pipe) -> None:
        super().__init__()
        self.parent = parent

    def __iter__(self) -> Iterator[str]:
        """Yield the names."""
        for pattern in self.parent:
            yield from shards(pattern)
