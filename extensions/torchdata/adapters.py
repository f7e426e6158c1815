"""torchdata's two adapters: shuffling on or off, and the longest wait for cached files."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Sequence
from typing import Any

from ...adapters.adapter import Adapter
from ...graph import Change, Pipe, RewriteResult, Rule, Site, describe, rebuild


class Shuffle(Adapter):
    """Enable (True) or disable (False) every pipe that shuffles; None leaves them as they are.

    If True finds no such pipe, it appends one with a warning.

    Examples
    --------
    >>> from torch.utils.data.datapipes.iter import IterableWrapper
    >>> chain = IterableWrapper(range(5)).shuffle()
    >>> list(Shuffle(False)(chain))
    [0, 1, 2, 3, 4]
    """

    def __init__(self, enable: bool | None = True) -> None:
        if enable not in (True, False, None):
            raise ValueError(f"enable is True, False or None, got {enable!r}")
        self.enable = enable

    def rewrite(self, pipe: Pipe) -> RewriteResult:
        if self.enable is None:
            return RewriteResult(pipe, pipe)
        changes = []

        def switch(old: Pipe, new: Any) -> Pipe:
            if hasattr(type(old), "set_shuffle") and hasattr(type(old), "set_seed"):
                new = copy.copy(new).set_shuffle(shuffle=self.enable)
                changes.append(Change("shuffle", describe(old), became=f"shuffles: {self.enable}"))
            return new  # type: ignore[no-any-return]

        sink: Any = rebuild(pipe, switch)
        if self.enable and not changes:
            what = "Shuffle found no shuffle() in the graph and appends one: batches are shuffled"
            warnings.warn(f"{what}; put .shuffle() where it belongs", stacklevel=3)
            sink = sink.shuffle()
            changes.append(Change("shuffle", describe(pipe), became=describe(sink)))
        return RewriteResult(pipe, sink if changes else pipe, tuple(changes))

    def __repr__(self) -> str:
        return f"Shuffle({self.enable})"


class CacheTimeout(Adapter):
    """Set the longest wait of every ``end_caching()`` in the graph, in seconds.

    It is the time that another process may take to make the files of one item; ``math.inf`` is no
    limit. Anything but such a number is a ``ValueError``.

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
            raise ValueError(f"timeout should be integer: a number of seconds, got {timeout!r}")
        self.timeout = timeout

    def rules(self) -> Sequence[Rule]:
        def match(site: Site) -> Any:
            # By its name: a graph without it should not load the pipes of files.
            ends = getattr(type(site.pipe), "form_name", "") == "end_caching"
            return site.pipe if ends and vars(site.pipe)["timeout"] != self.timeout else None

        def build(pipe: Any) -> Pipe:
            twin: Any = copy.copy(pipe)
            twin.timeout = self.timeout
            return twin  # type: ignore[no-any-return]

        return (Rule("wait for cached files", match, build),)

    def __repr__(self) -> str:
        return f"CacheTimeout({self.timeout:g})"
