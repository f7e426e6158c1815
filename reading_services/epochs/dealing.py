"""Run what comes before a dealing point once, and deal its items out to the workers in turn.

Item *i* goes to worker ``i % workers``. Each worker has a few items ahead, so many and so many
bytes; it says when it takes one, and the next follows. What one worker takes faster than another
makes the other's items wait here; they may be so many, and so many bytes.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Generator, Iterator
from typing import Any

from ...core.call_site import shorten
from ...core.errors import NotPicklable
from ...graph import clone, dispatch_point, traits_of, walk
from ..shares.feeding import Ended, Feed
from ..shares.sharing import apply_shares, refuse_twice
from ..transport.messages import Deal
from ..work import Replicated, planned

# One is worked on while the next lies there. A worker that runs out, as it gathers some, has more:
# what they are made by stands in the consumer's way, so nothing is made without need.
_FIRST_AHEAD, MOST_AHEAD = 2, 16
# What torchdata's round_robin_demux lets wait.
MOST_WAITING = 1000
_END, _FAILURE = Deal(ends=True), Deal(fails=True)


def items_to_deal(work: Replicated, seed: int, epoch: int) -> Generator[Any, None, None]:
    """Yield what the pipes up to the point make for this rank; nothing where there is no point.

    Raises
    ------
    GraphError
        Two sharding filters of a branch divide at the same level.
    """
    if work.point is None:
        return
    refuse_twice(work.graph)
    # A copy: the graph of the loader stays as it is, also where it holds running state.
    whole = clone(work.graph)
    once = dispatch_point(whole)
    assert once is not None
    apply_shares(once, ranks=work.part.ranks, rank=work.part.rank)
    yield from planned(once, seed, epoch, 0, of=whole)


def at_once(items: Iterator[Any]) -> Feed:
    """Return what hands out items in the process that makes them."""

    def feed() -> Any:
        for item in items:
            return item
        raise Ended

    return feed


def keeps_order(work: Replicated) -> bool:
    """Whether what workers make can be put into the order of the items that it was made of.

    It is told by the items that a worker has taken when it hands out one of its own. That says
    nothing where a thread takes them ahead, or may.
    """
    if work.point is None or work.hooks:
        return False
    return all(
        traits_of(pipe).known and not traits_of(pipe).ahead for pipe in walk(work.of_worker())
    )


class Dealer:
    """Deals items out.

    Parameters
    ----------
    items
        What makes them; closed at the end.
    workers
        Among how many.
    most_bytes
        What may wait, here and at the workers, in bytes pickled; one item of each always may.

    Examples
    --------
    >>> dealer = Dealer(iter("abc"), workers=2, most_bytes=1000)
    >>> [pickle.loads(deal.item) for deal in dealer.for_worker(1) if not deal.ends]
    ['b']
    >>> [pickle.loads(deal.item) for deal in dealer.for_worker(0) if not deal.ends]
    ['a', 'c']
    """

    def __init__(self, items: Iterator[Any], workers: int, most_bytes: int) -> None:
        self.error: Exception | None = None
        """What the pipes that make the items raised."""
        self.taken = [0] * workers
        """Items that each worker has begun with."""
        self._items = items
        self._most = most_bytes
        self._last: Deal | None = None
        self._next = 0
        self._waiting: list[deque[Deal]] = [deque() for _ in range(workers)]
        self._lying: list[deque[int]] = [deque() for _ in range(workers)]
        self._ahead = [_FIRST_AHEAD] * workers
        self._told = [False] * workers

    @property
    def all_taken(self) -> bool:
        """Whether no worker has anything left."""
        return all(self._told) and not any(self._lying)

    def for_worker(self, worker: int, *, needed: bool = True) -> Iterator[Deal]:
        """Yield what may be sent to a worker now.

        Parameters
        ----------
        worker
            Which.
        needed
            Whether it makes what comes next; one that does not is not served at the cost of many
            items that wait for others.

        Raises
        ------
        BufferError
            The others' items that wait would be too many.
        """
        lying, waiting = self._lying[worker], self._waiting[worker]
        while not self._told[worker] and len(lying) < self._ahead[worker]:
            while not waiting and self._last is None:
                if not needed and max(map(len, self._waiting)) >= MOST_AHEAD:
                    return
                self._advance(worker)
            deal = waiting[0] if waiting else self._last
            assert deal is not None
            if lying and sum(lying) + len(deal.item) > self._most // len(self._lying):
                return
            if waiting:
                waiting.popleft()
            else:
                self._told[worker] = True
            lying.append(len(deal.item))
            yield deal

    def took(self, worker: int) -> None:
        """Note that a worker has begun with the first of what lies there."""
        self._lying[worker].popleft()
        self.taken[worker] += 1
        if not self._lying[worker]:
            # It takes more than one for what it makes, and would wait for each.
            self._ahead[worker] = min(2 * self._ahead[worker], MOST_AHEAD)

    def place(self, worker: int) -> int:
        """Return which of all items a worker is at: what it makes now comes in its place."""
        return (self.taken[worker] - 1) * len(self.taken) + worker

    def _advance(self, worker: int) -> None:
        """Make the next item, for whoever's turn it is."""
        try:
            item = next(self._items)
            self._waiting[self._next].append(Deal(_pickled(item)))
        except StopIteration:
            self._last = _END
            return
        except Exception as error:  # whatever the pipes raise: told when its turn comes
            self.error, self._last = error, _FAILURE
            return
        self._next = (self._next + 1) % len(self._waiting)
        self._refuse_too_many(worker)

    def _refuse_too_many(self, worker: int) -> None:
        longest = max(self._waiting, key=len)
        size = sum(len(deal.item) for deal in longest)
        if len(longest) > MOST_WAITING or (len(longest) > MOST_AHEAD and size > self._most):
            raise BufferError(
                f"{len(longest)} items ({size} bytes) that were dealt out wait for worker "
                f"{self._waiting.index(longest)}, and worker {worker} asks for more: what comes "
                "after sharding_round_robin_dispatch() takes more items in one worker than in "
                "another. Put what leaves items out before it, or give "
                "MultiProcessingReadingService(prefetch_bytes=...) more."
            )

    def close(self) -> None:
        """End what makes the items."""
        close = getattr(self._items, "close", None)
        if close is not None:
            close()
        for waiting in self._waiting:
            waiting.clear()


def _pickled(item: Any) -> bytes:
    try:
        return pickle.dumps(item, pickle.HIGHEST_PROTOCOL)
    except Exception as error:  # whatever an object of the user's raises from its __reduce__
        msg = f"{shorten(item)} cannot travel to a worker: {error}"
        do = "Yield plain data before sharding_round_robin_dispatch(), or use num_workers=0."
        raise NotPicklable(msg, do=do) from error
