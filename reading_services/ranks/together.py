"""Ranks that have to ask each other before every batch, so that they end together.

Of a graph that cannot be planned nobody knows how many items it has before they are made; and of
items that fail, under ``OnError``, only one rank knows. They ask over gloo, in the consumers'
processes.

A rank that goes before the end says why and waits for nobody (``datapipes/rank_barrier.py``):
what it raised ends the others with ``RankFailed``, and a loop that went elsewhere with
``RankMissing``, at their next item and not at their limit.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NoReturn

from ...batching import Outcome
from ...core.errors import GraphError
from ...datapipes.rank_barrier import RankBarrier
from ..place import Place
from ..reading_service import Epoch, leave
from ..shares.part import PAD

# What a rank tells before each item: one of these, or from _HAS on how much failed in it.
_ENDED, _HAS = -1, 0
_START = Place()


class _InStep:
    """What one rank yields of an epoch that all end together.

    Parameters
    ----------
    own
        This rank's items.
    circle
        All ranks.
    """

    def __init__(self, own: Epoch, circle: RankBarrier) -> None:
        self.last = -1
        self._own = own
        self._circle = circle
        self._closed = self._agreed = self._left = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._closed:
            raise StopIteration
        try:
            return self._taken()
        except StopIteration:
            self.close()
            raise
        except BaseException as error:
            self._circle.part(error)  # at once: the others would wait for their limit
            self.close()
            raise

    def _taken(self) -> Any:
        raise NotImplementedError

    def _told(self, word: int) -> list[int]:
        """Tell the other ranks, and return what each has said."""
        words = self._circle.tell(word)
        if self._left:  # while the others were waited for
            self._circle.part()
            raise StopIteration
        return words

    def _end(self) -> NoReturn:
        """End, as all ranks do with the same words."""
        self._agreed = True
        raise StopIteration

    def leave(self) -> None:
        """End the wait for an item that another thread is in; :meth:`close` is still to come."""
        self._left = True
        leave(self._own)

    def close(self) -> None:
        """End this rank's pass; the others are told if they are still at it."""
        self._closed = True
        if not self._agreed:
            self._circle.part()
        self._own.close()


class TogetherEpoch(_InStep):
    """Yields the items of one rank as long as all ranks have one.

    Parameters
    ----------
    own
        This rank's items.
    circle
        All ranks.
    uneven
        ``"drop"``: all end with the first that ends. ``"pad"``: those that ended repeat their
        last item until all have ended.
    place
        The items that were delivered before. They are dropped here and not by ``own``: a rank that
        had ended before still needs its last item.
    """

    def __init__(self, own: Epoch, circle: RankBarrier, uneven: str, place: Place = _START) -> None:
        super().__init__(own, circle)
        self._place = place
        self._pads = uneven == PAD
        self._kept: Any = None
        self._has_kept = False
        self._ended = False

    def _taken(self) -> Any:
        while True:
            item = self._next()
            if not self._place.holds(self.last):
                return item

    def _next(self) -> Any:
        item, word = self._own_item()
        words = self._told(word)
        having = words.count(_HAS)
        if not having or (having < len(words) and not self._pads):
            self._end()
        if word == _ENDED:
            return self._repeated()
        if self._pads:
            self._kept, self._has_kept = item, True
        self.last = self._own.last
        return item

    def _own_item(self) -> tuple[Any, int]:
        if self._ended:
            return None, _ENDED
        try:
            return next(self._own), _HAS
        except StopIteration:
            self._ended = True
            return None, _ENDED

    def _repeated(self) -> Any:
        if not self._has_kept:
            raise GraphError(
                f"rank {self._circle.rank} has no item at all to repeat",
                do='Give it a share: fewer ranks, or uneven="drop".',
            )
        self.last += 1
        return self._kept

    def close(self) -> None:
        """End this rank's pass; the others are told if they are still at it."""
        self._kept = None
        super().close()


class CountedEpoch(_InStep):
    """Yields one rank's parts of batches of which some could not be made, counted on all ranks.

    All ranks plan alike, so they have the same batches. But only the one whose item failed knows
    of it: alone it would reach the budget of an epoch, and end, while the others wait for it in
    their next collective. So they tell each other before each batch, and end together.
    """

    def _taken(self) -> Any:
        batch, word = self._own_batch()
        words = self._told(word)
        if word == _ENDED:
            self._end()
        self.last = self._own.last
        elsewhere = sum(words) - word
        if not elsewhere:
            return batch
        if isinstance(batch, Outcome):
            return replace(batch, elsewhere=elsewhere)
        return Outcome(batch, (), elsewhere=elsewhere)

    def _own_batch(self) -> tuple[Any, int]:
        try:
            batch = next(self._own)
        except StopIteration:
            return None, _ENDED
        # What could not be planned was found by every rank: it is no news to the others.
        failures = batch.failures if isinstance(batch, Outcome) else ()
        return batch, _HAS + sum(failure.item >= 0 for failure in failures)
