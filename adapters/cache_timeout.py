"""How long a process waits for files that another one makes for the disk cache."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from ..graph import Rule, Site
from .adapter import Adapter


class CacheTimeout(Adapter):
    """Set the longest wait of every ``end_caching()`` in the graph.

    Parameters
    ----------
    timeout
        Seconds that another process may take to make the files of one item; ``math.inf`` for no
        limit.

    Raises
    ------
    ValueError
        It is no number of seconds.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> urls = IterableWrapper(["https://host/a.nii"])
    >>> pipe = urls.on_disk_cache(str).read_from_http().end_caching()
    >>> pipe.timeout, CacheTimeout(600)(pipe).timeout
    (300.0, 600)
    """

    def __init__(self, timeout: float | None = None) -> None:
        if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout >= 0:
            msg = f"timeout should be integer: a number of seconds, got {timeout!r}"
            raise ValueError(msg)
        self.timeout = timeout

    def rules(self) -> Sequence[Rule]:
        """Return the one rule: a cache that waits for another time becomes one that does."""
        return (Rule("wait for cached files", self._match, self._build),)

    def _match(self, site: Site) -> Any:
        # By its name: a graph without it should not load the pipes of files.
        pipe: Any = site.pipe
        ends = getattr(type(pipe), "chained", "") == "end_caching"
        return pipe if ends and pipe.timeout != self.timeout else None

    def _build(self, found: Any) -> Any:
        twin = copy.copy(found)
        twin.timeout = self.timeout
        return twin

    def __repr__(self) -> str:
        return f"CacheTimeout({self.timeout:g})"
