"""The pipe that stands where items are dealt out, in the graph of a worker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from ...core.errors import GraphError
from ...datapipes import DataPipe
from ...datapipes.epoch import count_seeded
from ...graph import Pipe, Traits, describe, origin_of
from .feeding import Ended, Feed


class Dealt(DataPipe):
    """Yields what is dealt out to this worker, in the place of the pipes that make it.

    Parameters
    ----------
    point
        The last of those; it does not travel.
    """

    traits: ClassVar[Traits] = Traits()

    def __init__(self, point: Pipe) -> None:
        super().__init__()
        self.stands_for = count_seeded(point)
        self.named = describe(point)
        self.written = origin_of(point)
        self.feed: Feed | None = None
        self._begun = False

    def describe(self) -> str:
        """Return whose items they are."""
        return f"items of {self.named}"

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, in which each item comes once."""
        self._begun = False

    def __iter__(self) -> Iterator[Any]:
        """Yield the items.

        Raises
        ------
        GraphError
            When it is asked for a second pass.
        """
        assert self.feed is not None
        if self._begun:
            raise GraphError(
                f"a pipe after {self.named} begins a second pass in one epoch, and what is dealt "
                "out comes once",
                do="Put cycle(), repeat() and the like before it.",
            ).at(self.written)
        self._begun = True
        while True:
            try:
                item = self.feed()
            except Ended:
                return
            yield item

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "feed": None, "_begun": False}
