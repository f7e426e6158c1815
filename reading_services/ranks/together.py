"""Ranks that have to ask each other before every batch, so that they end together.

Of a graph that cannot be planned nobody knows how many items it has before they are made; and of
items that fail, under ``OnError``, only one rank knows. They ask over gloo, in the consumers'
processes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ...core.errors import RankMissing
from ...realizing import Outcome
from ..place import Place
from ..reading_service import Epoch
from ..shares.part import PAD
from .agreeing import Ranks

# What a rank tells before each item: one of these, or from _HAS on how much failed in it.
_FAILED, _ENDED, _HAS = -2, -1, 0
_START = Place()


class TogetherEpoch:
    """Yields the items of one rank as long as all ranks have one.

    Parameters
    ----------
    own
        This rank's items.
    ranks
        The others.
    uneven
        ``"drop"``: all end with the first that ends. ``"pad"``: those that ended repeat their
        last item until all have ended.
    place
        The items that were delivered before. They are dropped here and not by ``own``: a rank that
        had ended before still needs its last item.
    """

    def __init__(self, own: Epoch, ranks: Ranks, uneven: str, place: Place = _START) -> None:
        self.last = -1
        self._own = own
        self._place = place
        self._ranks = ranks
        self._pads = uneven == PAD
        self._kept: Any = None
        self._has_kept = False
        self._ended = False
        self._closed = False

    def __iter__(self) -> TogetherEpoch:
        return self

    def __next__(self) -> Any:
        if self._closed:
            raise StopIteration
        try:
            while True:
                item = self._take()
                if not self._place.holds(self.last):
                    return item
        except BaseException:
            self.close()
            raise

    def _take(self) -> Any:
        item, word = _asked(self._own_item, self._ranks)
        words = _answered(word, self._ranks)
        having = [rank for rank, told in words.items() if told == _HAS]
        enough = bool(having) if self._pads else len(having) == len(words)
        if not enough:
            raise StopIteration
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
            raise RankMissing(
                f"rank {self._ranks.rank} has no item at all to repeat",
                do='Give it a share: fewer ranks, or uneven="drop".',
            )
        self.last += 1
        return self._kept

    def close(self) -> None:
        """End this rank's pass."""
        self._closed, self._kept = True, None
        self._own.close()


class CountedEpoch:
    """Yields one rank's parts of batches of which some could not be made, counted on all ranks.

    All ranks plan alike, so they have the same batches. But only the one whose item failed knows
    of it: alone it would reach the budget of an epoch, and end, while the others wait for it in
    their next collective. So they tell each other before each batch, and end together.

    Parameters
    ----------
    own
        This rank's parts.
    ranks
        The others.
    """

    def __init__(self, own: Epoch, ranks: Ranks) -> None:
        self.last = -1
        self._own = own
        self._ranks = ranks
        self._closed = False

    def __iter__(self) -> CountedEpoch:
        return self

    def __next__(self) -> Any:
        if self._closed:
            raise StopIteration
        try:
            return self._take()
        except BaseException:
            self.close()
            raise

    def _take(self) -> Any:
        batch, word = _asked(self._own_batch, self._ranks)
        words = _answered(word, self._ranks)
        if word == _ENDED:
            raise StopIteration
        self.last = self._own.last
        elsewhere = sum(told for rank, told in words.items() if rank != self._ranks.rank)
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

    def close(self) -> None:
        """End this rank's pass."""
        self._closed = True
        self._own.close()


def _asked(own: Callable[[], tuple[Any, int]], ranks: Ranks) -> tuple[Any, int]:
    """Return what this rank has and what it is to tell; the others hear of its failure."""
    try:
        return own()
    except Exception:
        ranks.says(_FAILED)  # the others would wait for their limit
        raise


def _answered(word: int, ranks: Ranks) -> dict[int, int]:
    """Tell the other ranks, and return what each has said; RankMissing if one failed."""
    words = ranks.says(word)
    failed = [str(rank) for rank, told in words.items() if told == _FAILED]
    if failed:
        raise RankMissing(
            f"rank {', '.join(failed)} failed, so rank {ranks.rank} ends its epoch too",
            do="Its own error says why.",
        )
    return words
