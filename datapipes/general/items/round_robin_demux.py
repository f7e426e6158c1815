"""Deal the items of a pipe out to several, in turn."""

from __future__ import annotations

from typing import Any

from ....core.origin import warn
from ....core.whole import whole
from ....graph import Pipe
from ...datapipe import DataPipe, length_of
from ...forms import offered
from .branches import Branch, Trunk


@offered("round_robin_demux")
class RoundRobinDemultiplexer(DataPipe):
    """Return a list of pipes among which the parent's items are dealt out in turn.

    Parameters
    ----------
    datapipe
        The parent.
    num_instances
        Number of pipes. One is the parent itself, with a warning.
    buffer_size
        How many items may wait in all; -1 for any number.
    buffer_bytes
        Bytes that they may take, with the data of arrays and tensors; one item of each pipe may
        take more. None for 1 GiB, or for any number if ``buffer_size`` is -1.

    Raises
    ------
    ValueError
        If there is to be no pipe.
    BufferError
        While iterating: too many items wait for pipes that are not read.

    Examples
    --------
    >>> from voxpipe.datapipes.iter import IterableWrapper
    >>> even, odd = IterableWrapper(range(5)).round_robin_demux(2)
    >>> list(even), len(odd), list(odd)
    ([0, 2, 4], 2, [1, 3])
    """

    def __new__(  # type: ignore[misc]
        cls,
        datapipe: Pipe,
        num_instances: int,
        buffer_size: int = 1000,
        *,
        buffer_bytes: int | None = None,
    ) -> list[Any]:
        """Return the pipes."""
        if whole("num_instances", num_instances, least=1) == 1:
            text = "The operation of `round_robin_demux` with `num_instances=1` is an no-op and "
            warn(text + "returns the provided `datapipe` in a list directly", UserWarning)
            return [datapipe]
        trunk = _InTurn(datapipe, num_instances, buffer_size, buffer_bytes)
        return [Branch(trunk, number) for number in range(num_instances)]


class _InTurn(Trunk):
    """Deals each item out to the next branch."""

    chained = "round_robin_demux"

    def deal(self, item: Any, number: int) -> list[tuple[int, Any]]:
        """Give the item to one branch."""
        return [(number % self.count, item)]

    def room_taken(self, waiting: list[int]) -> int:
        """Return how many items wait in all."""
        return sum(waiting)

    def branch_length(self, branch: int) -> int:
        """Return the branch's share of the parent's length."""
        each, more = divmod(length_of(self, self.parent), self.count)
        return each + (branch < more)
