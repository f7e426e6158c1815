"""The adapter that turns shuffling on or off."""

from __future__ import annotations

import copy
import warnings
from typing import Any

from ..graph import Pipe, RewriteResult, describe, rebuild
from ..graph.rewrite import Change
from .adapter import Adapter


class Shuffle(Adapter):
    """Enable or disable every pipe that shuffles.

    Parameters
    ----------
    enable
        True: all shuffle; where there is none, one is appended with a warning. False: none does.
        None: as they are.

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
                became = f"shuffles: {self.enable}"
                changes.append(Change("shuffle", describe(old), became=became))
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
